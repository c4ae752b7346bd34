"""`reservoir-hw emulate`: a bench in a process of its own, reached by our drivers."""

import contextlib
import json
import signal
import subprocess
import sys

import numpy as np
from command_line import call_here

from reservoir_hw.backends.visa.reservoir import VisaConfig
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.drivers.visa.keysight_33500 import Keysight33500Config
from reservoir_hw.drivers.visa.keysight_infiniivision import KeysightInfiniiVisionConfig
from reservoir_hw.drivers.visa.roles import Trigger

COMMAND = [sys.executable, "-m", "reservoir_hw.cli", "emulate", "bench", "--dialect", "keysight", "--port", "0"]


@contextlib.contextmanager
def emulating(*arguments, cwd):
    """What a bench says, line by line; it ends by the signal with one more line."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert (rest + errors).splitlines()[-1].startswith("The bench has ended after")
    finally:
        process.kill()
        process.communicate()


def test_a_bench_is_driven_by_the_reservoir_file_that_it_prints(tmp_path):
    (tmp_path / "dut.yaml").write_text(
        "inputs: {3: {output: 2, device: {kind: linear, noise_v: 0.0}}}\ntermination_ohm: null\n"
    )
    # Of an earlier bench that was killed.
    log = tmp_path / "events.jsonl"
    log.write_text('{"event": "on", "channel": 2}\n')
    options = ["--dut", "dut.yaml", "--log", log.name, "-o", "bench.yaml", "--json"]
    with emulating(*options, cwd=tmp_path) as said:
        first = json.loads(next(said))
        reservoir = Document.from_file(tmp_path / "bench.yaml").data
        assert first["reservoir"] == json.loads(json.dumps(reservoir))
        assert reservoir["channels"] == {"output": 2, "answer": 3}
        safe_check = reservoir["hil"]["safe_check"]
        assert subprocess.run(safe_check, check=False).returncode == 0
        generator = Keysight33500Config.model_validate(reservoir["generator"]).build()
        digitizer = KeysightInfiniiVisionConfig.model_validate(reservoir["digitizer"]).build()
        (low_v, high_v), rate_hz = generator._config.outputs[2].range_v, reservoir["points_per_node"] / 1e-5
        with generator, digitizer:
            levels = np.random.default_rng(0).uniform(low_v, high_v, 500)
            generator.load({2: np.repeat(levels, 10)}, rate_hz)
            digitizer.configure([3], Trigger(source="external"), rate_hz, 5000)
            generator.arm()
            checked = call_here("emulate", "check", log)
            assert (checked.returncode, checked.stdout) == (1, "on: output 2\n")
            digitizer.arm()
            generator.trigger()
            digitizer.wait(5.0)
            (record,) = digitizer.fetch().values()
            generator.stop()
        assert record.clipped == 0
        (low_v, high_v) = digitizer._config.inputs[3].range_v
        assert np.ptp(record.volts) > 0.5 * (high_v - low_v)
        assert call_here("emulate", "check", log).returncode == 0


def test_the_default_bench_says_what_to_write_into_a_file(tmp_path):
    with emulating("--hislip", "--generator", "tektronix", cwd=tmp_path) as said:
        first = next(said)
        assert "(keysight, with a generator of tektronix)" in first
        assert "hislip0," in first
        assert next(said).endswith("(Ctrl-C ends the bench):\n")
        assert next(said) == "\n"
        lines = iter(lambda: next(said), "\n")
        (tmp_path / "bench.yaml").write_text("".join(line.removeprefix("    ") for line in lines))
    reservoir = Document.from_file(tmp_path / "bench.yaml")
    reservoir.set("inputs", 1, "a task")
    config = validate(VisaConfig, reservoir)
    assert (config.channels.output, config.channels.answer, config.channels.monitor) == (1, 1, 2)
    assert 30 < config.memory_steps < 50
    assert config.hil is None
    assert (config.generator.kind, config.digitizer.kind) == ("tektronix_afg3000", "keysight_infiniivision")


def test_wrong_options_are_told_in_a_sentence(tmp_path):
    (tmp_path / "bare.yaml").write_text("inputs: {1: {output: 1}}\n")
    (tmp_path / "wild.yaml").write_text("inputs: {1: {output: 1, device: {kind: mackey_glass, feedback_gain: 1.3}}}\n")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("[]\n")
    bench = ["bench", "--dialect", "keysight", "--port", "0", "--dut"]
    for arguments, said in (
        (
            ["bench", "--dialect", "siglent"],
            "there is no dialect 'siglent'; there are: keysight, tektronix, red_pitaya",
        ),
        (
            ["bench", "--dialect", "red_pitaya", "--hislip"],
            "a red_pitaya is reached by a raw socket only: leave out --h",
        ),
        (["bench", "--dialect", "keysight", "--generator", "lecroy"], "there is no dialect 'lecroy'"),
        (
            ["bench", "--dialect", "red_pitaya", "--generator", "keysight"],
            "a red_pitaya is generator and digitizer in one",
        ),
        ([*bench, "film"], "--dut film: there is no such file, and the devices are ikeda, mackey_glass, linear"),
        ([*bench, "bare.yaml"], "none of the inputs of this bench has a device"),
        ([*bench, "wild.yaml"], "does not forget its past within 0.2 s"),
        (["check", "none"], "none cannot be read: No such file"),
        (["check", "empty"], "empty says nothing about outputs"),
        (["check", "text"], "text:1: this is no event"),
    ):
        done = call_here("emulate", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert said in done.stderr
