"""`reservoir-hw emulate`: a bench in a process of its own, reached by our drivers."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import called, started
from serial_host import DETACH, STATUS, Host

from reservoir_hw import open_reservoir
from reservoir_hw.backends.visa.reservoir import VisaConfig
from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.drivers.visa.keysight import Keysight33500Config, KeysightInfiniiVisionConfig
from reservoir_hw.drivers.visa.roles import Trigger

BENCH = ["bench", "--dialect", "keysight", "--port", "0"]


@contextlib.contextmanager
def emulating(*arguments, cwd, ends="The bench has ended after"):
    """What an emulator says, line by line; it ends by the signal with one more line."""
    process = started("emulate", *arguments, cwd=cwd)
    assert process.stdout is not None
    try:
        yield iter(process.stdout.readline, "")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert (rest + errors).splitlines()[-1].startswith(ends)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_bench_is_driven_by_the_reservoir_file_that_it_prints(tmp_path):
    (tmp_path / "dut.yaml").write_text(
        "inputs: {3: {output: 2, device: {kind: linear, noise_v: 0.0}}}\ntermination_ohm: null\n"
    )
    # Of an earlier bench that was killed.
    log = tmp_path / "events.jsonl"
    log.write_text('{"event": "on", "channel": 2}\n')
    options = ["--dut", "dut.yaml", "--log", log.name, "-o", "bench.yaml", "--json"]
    with emulating(*BENCH, *options, cwd=tmp_path) as said:
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
            assert called("emulate", "check", log, code=1).stdout == "on: output 2\n"
            digitizer.arm()
            generator.trigger()
            digitizer.wait(5.0)
            (record,) = digitizer.fetch().values()
            generator.stop()
        assert record.clipped == 0
        (low_v, high_v) = digitizer._config.inputs[3].range_v
        assert np.ptp(record.volts) > 0.5 * (high_v - low_v)
        called("emulate", "check", log)


@pytest.mark.slow
def test_the_default_bench_says_what_to_write_into_a_file(tmp_path):
    with emulating(*BENCH, "--hislip", "--generator", "tektronix", cwd=tmp_path) as said:
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
    assert 35 < config.memory_steps < 45
    assert config.hil is None
    assert (config.generator.kind, config.digitizer.kind) == ("tektronix_afg3000", "keysight_infiniivision")


@pytest.mark.slow
def test_a_board_is_found_by_the_reservoir_file_that_it_prints(tmp_path):
    (tmp_path / "faults.yaml").write_text("faults: [{kind: drop, direction: to_board, operation: status}]\n")
    options = ["--nodes", "4", "--link", "board", "--log", "log", "--faults", "faults.yaml"]
    ends = "The board has ended. Sessions: 1; faults: drop 1."
    with emulating("board", *options, "-o", "board.yaml", "--json", cwd=tmp_path, ends=ends) as said:
        first = json.loads(next(said))
        reservoir = Document.from_file(tmp_path / "board.yaml").data
        assert first["reservoir"] == json.loads(json.dumps(reservoir))
        assert (reservoir["kind"], reservoir["port"], reservoir["baud"]) == ("serial", first["port"], 115200)
        assert first["port"] == str(tmp_path / "board")
        with Host(reservoir["port"], wait_s=0.2) as host:
            assert host.info().nodes == 4
            host.attach()
            checked = subprocess.run(reservoir["hil"]["safe_check"], capture_output=True, text=True, check=False)
            assert (checked.returncode, checked.stdout) == (1, "on: output 1\n")
            called("emulate", "check", first["log"], code=1)
            host.send(STATUS)
            assert host.read() is None
            host.counted(DETACH)
            called("emulate", "check", first["log"])
    assert not (tmp_path / "board").is_symlink()


@pytest.mark.slow
def test_a_board_says_what_to_write_into_a_file(tmp_path):
    with emulating("board", cwd=tmp_path, ends="The board has ended. Sessions: 0.") as said:
        first = next(said)
        port = first.split()[-3].rstrip(",")
        assert first == f"Emulated board with 50 virtual nodes at {port}, 115200 baud\n"
        assert next(said) == "A reservoir file (Ctrl-C ends the board):\n"
        assert "".join(next(said) for _ in range(4)) == f"\n    kind: serial\n    port: {port}\n    baud: 115200\n"


@pytest.mark.slow
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
        (["board", "--nodes", "3000"], "a step of 1 inputs and 3000 nodes does not fit into a frame of 4095 bytes"),
        (["board", "--baud", "115201"], "115201 is no rate of a pty; there are: 1200, "),
        (["board", "--link", "text"], "text: the link to the board cannot be made: File exists"),
        (["board", "--log", "no/log"], "no/log cannot be written: No such file"),
        (["board", "--faults", "bare.yaml"], "unknown key 'inputs'; (known: faults, seed)"),
        (["check", "none"], "none cannot be read: No such file"),
        (["check", "empty"], "empty says nothing about outputs"),
        (["check", "text"], "text:1: this is no event"),
    ):
        assert said in called("emulate", *arguments, cwd=tmp_path, code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["steps", "wall"])
def test_a_film_is_driven_by_the_reservoir_file_that_it_prints(clock: str, tmp_path: Path) -> None:
    (tmp_path / "dut.yaml").write_text("electrodes: 3\nslowest_s: 0.1\n")
    options = ["--dut", "dut.yaml", "--clock", clock, "--log", "film.jsonl", "-o", "film.yaml", "--json"]
    with emulating("bench", "--dialect", "smu", "--port", "0", *options, cwd=tmp_path) as said:
        first = json.loads(next(said))
        assert first["reservoir"] == json.loads(json.dumps(Document.from_file(tmp_path / "film.yaml").data))
        with open_reservoir(tmp_path / "film.yaml") as reservoir:
            states = reservoir.run(np.random.default_rng(0).uniform(0, 0.5, (1, 10, 1)))
            assert np.std(np.asarray(states), axis=1).min() > 0.1
            called("emulate", "check", tmp_path / "film.jsonl", code=1)
        assert subprocess.run(first["reservoir"]["hil"]["safe_check"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dialect", "smu", "--clock", "sun"], "--clock sun: it is steps or wall"),
        (["--dialect", "smu", "--hislip"], "has no generator, and no HiSLIP"),
        (["--dialect", "keysight", "--clock", "wall"], "--clock is for --dialect smu"),
    ],
)
def test_what_a_film_cannot_be(options: list[str], said: str) -> None:
    assert said in called("emulate", "bench", *options, code=2).stderr


@pytest.mark.slow
def test_a_board_of_text_is_driven_by_the_reservoir_file_that_it_prints(tmp_path: Path) -> None:
    options = ["--text", "--nodes", "4", "--inputs", "2", "--link", str(tmp_path / "port"), "-o", "board.yaml"]
    with emulating("board", *options, cwd=tmp_path, ends="The board has ended. Lines: ") as said:
        assert "4 virtual nodes" in next(said)
        with open_reservoir(tmp_path / "board.yaml") as reservoir:
            assert reservoir.spec.inputs == 2
            states = reservoir.run(np.random.default_rng(0).uniform(-1, 1, (1, 10, 2)))
            assert states.shape == (1, 10, 4)
        # `device find` takes it for a board of the serial protocol, and says whose it may be.
        found = called("device", "find", str(tmp_path / "port"), code=3)
        assert "of `kind: commands`" in found.stdout + found.stderr
