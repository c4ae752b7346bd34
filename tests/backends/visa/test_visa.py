"""`kind: visa` on emulated instruments: what is read is what the equation says, and what is refused."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ikeda_reference
import numpy as np
import pytest
from emulated_lab import QUIET, Lab, configuration, emulated_lab

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.backends.visa.reservoir import VisaReservoir
from reservoir_hw.core.errors import (
    CalibrationError,
    ConfigurationError,
    DeviceBusy,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
)
from reservoir_hw.core.reservoir_config import reservoir_config
from reservoir_hw.drivers.visa.scpi import ScpiInstrument
from reservoir_hw.emulators.bench import BenchConfig
from reservoir_hw.emulators.physics.devices import Ikeda, Linear
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.narma import narma_series


@pytest.fixture
def lab() -> Iterator[Lab]:
    with emulated_lab() as lab:
        yield lab


def inputs(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (1, steps, 1))


def nrmse(found: Any, expected: Any) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """With `generator__outputs={...}` put into its section."""
    config = {**config}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section] = {**config[section], name: value} if name else value
    return config


# ---- the truth ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "read"),
    [
        ("keysight", {}),
        ("keysight", {"samples_per_node": 4.0, "position": 0.5}),
        ("keysight", {"repetitions": 4}),
        # Its generator holds each sample, and its oscilloscope takes no more samples than it is asked for.
        ("tektronix", {"samples_per_node": 100.0}),
    ],
)
def test_states_are_those_of_the_equation(dialect: str, read: dict[str, Any]) -> None:
    device, u = Ikeda(), inputs(150)
    with emulated_lab(dialect=dialect) as lab, open_reservoir({**lab.config, **read}) as reservoir:
        states = reservoir.run(u)[0]
        settings = reservoir.provenance()
        layout = reservoir._layout  # pyright: ignore[reportAttributeAccessIssue]
    position, held = read.get("position", 0.8), dialect == "tektronix"
    truth = ikeda_reference.states(layout, u[0], device, position, 0.2, held=held)
    slower = ikeda_reference.states(layout, u[0], device, position, 0.2, tau_s=1.05 * device.tau_s, held=held)
    # Noise and steps of the converter, as if nothing was averaged.
    lsb_v = 0.2 / 4096
    bound = np.hypot(device.noise_v, lsb_v / np.sqrt(12)) / truth.std()
    assert nrmse(states, truth) < bound < 0.5 * nrmse(slower, truth)
    assert nrmse(states, slower) > bound
    # The clock of the digitizer is 12 ppm faster.
    assert settings["clock_ppm"] == pytest.approx(12, abs=3)
    assert settings["counters"]["saturations"] == 0
    assert settings["instruments"]["generator"].lower().startswith(dialect)


@pytest.mark.slow
@pytest.mark.parametrize(("generator", "digitizer"), [("tektronix", "keysight"), ("keysight", "tektronix")])
def test_another_generator_needs_one_line(generator: str, digitizer: str) -> None:
    """Its kind and its address. They go from sample to sample on other ways, of which a linear device shows no mean."""
    bench, u = BenchConfig().with_device(Linear(noise_v=0.0)), inputs(60)
    with emulated_lab(bench, dialect=digitizer) as lab:
        config = changed(lab.config, digitizer__inputs={"1": {"range_v": [-1, 1]}, "2": {"range_v": [-1.1, 1.1]}})
        with open_reservoir(config) as reservoir:
            of_one_make = reservoir.run(u)
    with emulated_lab(bench, dialect=digitizer, generator=generator) as lab:
        other = {key: lab.config["generator"][key] for key in ("kind", "address")}
        swapped = changed(config, digitizer__address=lab.config["digitizer"]["address"])
        with open_reservoir({**swapped, "generator": {**config["generator"], **other}}) as reservoir:
            mixed = reservoir.run(u)
            assert reservoir.provenance()["instruments"]["generator"].lower().startswith(generator)
    step_v = 2 / 4096
    assert np.sqrt(np.mean((mixed - of_one_make) ** 2)) < step_v < 0.01 * mixed.std()


@pytest.mark.slow
def test_long_inputs_are_cut_to_the_memory() -> None:
    with emulated_lab(BenchConfig().with_device(QUIET)) as lab:
        u = inputs(100)
        with open_reservoir(lab.config) as reservoir:
            whole = reservoir.run(u)
            bursts = len(lab.events("burst begins"))
        # 2 · 630 samples of markers, 30 steps of rest, and 60 steps, of which all bursts but the first replay 30.
        short = changed(lab.config, generator__memory_samples=1 + 1260 + 30 * 500 + 60 * 500)
        with open_reservoir(short) as reservoir:
            cut = reservoir.run(u)
            assert len(lab.events("burst begins")) - bursts == 3
            assert lab.events("burst begins")[-1]["samples"] == 1 + 1260 + (30 + 30 + 10) * 500
    # The digitizer takes its samples at other moments.
    assert nrmse(cut, whole) < 0.005
    shortest = 1 + 1260 + 30 * 500 + 30 * 500
    with pytest.raises(
        ConfigurationError, match=r"rest of 30 steps of 500 \(50 nodes . 10 points\).*30 steps, and mem"
    ):
        open_reservoir(changed(lab.config, generator__memory_samples=shortest))


@pytest.mark.slow
def test_the_estimate_counts_bursts_and_what_is_played(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench.yaml").write_text(json.dumps({**lab.config, "repetitions": 2}))
    played, load = [], VisaReservoir._burst

    def counted(self: VisaReservoir, u: np.ndarray) -> np.ndarray:
        played.append(2 * len(u))
        return load(self, u)

    monkeypatch.setattr(VisaReservoir, "_burst", counted)
    experiment = Path(__file__).parents[3] / "examples/virtual_bench/narma.yaml"
    sets = {"task.train_steps": 500, "vary": {}, "run.folder": str(tmp_path)}
    config = Experiment.from_file(experiment, reservoir=tmp_path / "bench.yaml", set=sets)
    expected = config.estimate()
    config.run()
    assert len(lab.events("burst begins")) == expected.bursts
    assert sum(played) == expected.device_steps


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"channels": {"output": 3}}, r"channels.output is 3, and generator.outputs has \[1\]"),
        ({"channels": {"answer": 4}}, r"channels.answer is 4, and digitizer.inputs has \[1, 2\]"),
        ({"channels": {"answer": 2, "monitor": 2}}, "answer and monitor are both input 2"),
        ({"channels": {"answer": 1}}, "without channels.monitor a calibration must say"),
        ({"scaling": {"gain": 1.0, "offset": 1.5}}, r"scaling.offset 1.5 V lies beyond range_v \[-1, 1\]"),
        ({"generator__kind": "keysight_infiniivision"}, "is no generator"),
        ({"generator__kind": "keysight_3350"}, "did you mean 'keysight_33500'"),
        ({"generator__memory": 5}, r"generator.memory = 5: unknown key; did you mean 'memory_samples'"),
        ({"memory_steps": 0}, "memory_steps"),
        ({"generator__outputs": {"1": {"range_v": [-20, 20]}}}, "the instrument reaches ±10 V"),
        ({"calibration": "nowhere.json"}, "nowhere.json cannot be read .*device calibrate"),
    ],
)
def test_configurations_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    config = configuration("TCPIP::127.0.0.1::5025::SOCKET", "TCPIP::127.0.0.1::5026::SOCKET")
    with pytest.raises((ConfigurationError, CalibrationError), match=said):
        open_reservoir(changed(config, **changes))


def test_the_default_marker_keeps_the_limits_whatever_is_played() -> None:
    with emulated_lab(dialect="tektronix", marker_v=None, scaling={"gain": 0.1}) as lab:
        gentle = {"1": {"range_v": [-1, 1], "load_ohm": 50.0, "highest_step_v": 0.4}}
        lab.config["digitizer"]["inputs"]["1"]["range_v"] = [0.0, 0.4]
        with open_reservoir(changed(lab.config, generator__outputs=gentle)) as reservoir:
            for u in (-1.0, 1.0):
                reservoir.run(np.full((1, 3, 1), u))


@pytest.mark.slow
def test_what_is_refused_is_never_played(lab: Lab) -> None:
    wide = {**lab.config, "input_range": [-2.0, 2.0]}
    with open_reservoir(wide) as reservoir:
        with pytest.raises(InputRangeError, match=r"step 1 would play .* beyond range_v \[-1, 1\]"):
            reservoir.run(np.array([[[0.0], [1.9]]]))
        steep = changed(lab.config, generator__outputs={"1": {"range_v": [-1, 1], "highest_step_v": 0.1}})
        with pytest.raises(DeviceBusy, match="in use by process"):
            open_reservoir(steep)
    with (
        open_reservoir(steep) as reservoir,
        pytest.raises(ConfigurationError, match=r"exceeds highest_step_v 0.1; nothing was sent"),
    ):
        reservoir.run(inputs(3))
    swapped = changed(lab.config, digitizer__address=lab.config["generator"]["address"])
    with pytest.raises(ConfigurationError, match=r"is .Keysight Technologies,33512B.*is no KeysightInfiniiVision"):
        open_reservoir(swapped)
    assert lab.events() == []


PERMISSION = """
answers = [True, False]
def ask(config):
    assert config.device_name == "emulated ikeda"
    return answers.pop(0)
def broken(config):
    raise RuntimeError("the door switch does not answer")
"""


@pytest.mark.slow
def test_the_interlock_is_asked_before_every_burst(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "permission.py").write_text(PERMISSION)
    monkeypatch.chdir(tmp_path)
    with open_reservoir({**lab.config, "interlock": "permission:ask"}) as reservoir:
        reservoir.run(inputs(3))
        with pytest.raises(DeviceFault, match="the interlock permission:ask does not permit a burst; nothing was pl"):
            reservoir.run(inputs(3))
        assert not lab.on()
    for interlock, said in (
        ("permission:broken", "permission:broken: RuntimeError: the door switch does not answer"),
        ("permission:absent", "interlock: permission has no function 'absent'"),
        ((sys.executable, "-c", "raise SystemExit(1)"), "the interlock .* does not permit a burst"),
    ):
        with (
            open_reservoir({**lab.config, "interlock": interlock}) as reservoir,
            pytest.raises((DeviceFault, ConfigurationError), match=said),
        ):
            reservoir.run(inputs(3))
    assert len(lab.events("burst begins")) == 1


@pytest.mark.slow
def test_nothing_is_switched_on_without_a_guard(lab: Lab) -> None:
    """An instrument that takes one connection cannot be made safe by anybody else."""
    with socket.create_server(("127.0.0.1", 0)) as server, emulated_lab() as other:
        relay = threading.Thread(target=_one_client, args=(server, other), daemon=True)
        relay.start()
        address = f"TCPIP::127.0.0.1::{server.getsockname()[1]}::SOCKET"
        only = changed(lab.config, generator__address=address, generator__timeout_s=0.5)
        with pytest.raises(DeviceFault, match=r"nobody can watch over the instruments: .*; nothing was switched on"):
            open_reservoir(only)
        assert other.events() == lab.events() == []


def _one_client(server: socket.socket, lab: Lab) -> None:
    """Passes the first client on, and leaves all others without an answer."""
    host, port = lab.config["generator"]["address"].split("::")[1:3]
    client, _ = server.accept()
    with client, socket.create_connection((host, int(port))) as instrument:
        back = threading.Thread(target=_copy, args=(instrument, client), daemon=True)
        back.start()
        _copy(client, instrument)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass


@pytest.mark.slow
def test_what_was_left_at_the_panel_changes_no_volts(lab: Lab) -> None:
    u = inputs(20)
    with open_reservoir(lab.config) as reservoir:
        before = reservoir.run(u)
    with ScpiInstrument(lab.config["generator"]["address"]) as instrument:
        instrument.write("SOUR1:VOLT:UNIT VRMS", "SOUR1:BURS:PHAS 90", "OUTP1:POL INV")
    with open_reservoir(lab.config) as reservoir:
        assert nrmse(reservoir.run(u), before) < 0.01


@pytest.mark.slow
def test_auxiliary_instruments(lab: Lab) -> None:
    """The second output of the generator as a bias supply."""
    bias = {
        "address": lab.config["generator"]["address"],
        "set": "SOUR2:VOLT:OFFS {value}",
        "read": "SOUR2:VOLT:OFFS?",
        "value": 0.5,
        "limits": [0.0, 1.0],
        "ramp_step": 0.2,
        "ramp_wait_s": 0.0,
        "closing": 0.0,
    }
    with ScpiInstrument(bias["address"]) as instrument:
        with emulated_lab() as other, open_reservoir({**other.config, "knobs": {"bias": bias}}) as reservoir:
            assert reservoir.provenance()["knobs"] == {"bias": 0.5}
            reservoir.run(inputs(3))
            assert instrument.query_number("SOUR2:VOLT:OFFS?") == 0.5
        assert instrument.query_number("SOUR2:VOLT:OFFS?") == 0.0
        # Somebody has left it beyond its limits: a ramp from there would set such values, too.
        instrument.write("SOUR2:VOLT:OFFS 1.5")
        with (
            emulated_lab() as other,
            pytest.raises(DeviceFault, match=r"knob bias is at 1.5, beyond its limits \[0, 1\]"),
        ):
            open_reservoir({**other.config, "knobs": {"bias": bias}})
        # The guard sets the closing value all the same, at once.
        assert instrument.query_number("SOUR2:VOLT:OFFS?") == 0.0
    with pytest.raises(ConfigurationError, match=r"value 2 lies beyond limits \[0, 1\]"):
        reservoir_config({**lab.config, "knobs": {"bias": {**bias, "value": 2.0}}})


@pytest.mark.slow
def test_a_fault_switches_the_outputs_off_and_keeps_what_was_harvested(lab: Lab) -> None:
    short = changed(lab.config, generator__memory_samples=1 + 1260 + 30 * 500 + 60 * 500, digitizer__timeout_s=0.5)
    with open_reservoir(short) as reservoir:
        good = reservoir.run(inputs(5))
        reservoir.reset()
        # The level of the trigger is never reached: the cable of the monitor fell out.
        lab.bench.config.inputs.pop(2)
        chain = lab.bench._chains.pop(2)
        with pytest.raises((DeviceFault, DeviceTimeout), match="trigger not met") as fault:
            reservoir.run(inputs(5))
        assert not lab.on()
        assert fault.value.steps_done == 0
        lab.bench.config.inputs[2] = lab.bench.config.inputs[1].model_copy(update={"device": None})
        lab.bench._chains[2] = chain
        reservoir.reset()
        assert nrmse(reservoir.run(inputs(5)), good) < 0.05
        assert reservoir.counters.faults == 1
    assert not lab.on()


@pytest.mark.slow
def test_narma10_is_as_good_as_on_the_equation(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten data sets, in pairs: the bench, and the equation behind a converter of 12 bits, differ by less than 5 %."""
    with emulated_lab(BenchConfig().with_device(QUIET)) as lab:
        config = changed(
            {**lab.config, "scaling": {"gain": 1.0, "offset": 0.4}, "input_range": [0.0, 0.5], "marker_v": 1.0},
            generator__outputs={"1": {"range_v": [-0.2, 1.0], "load_ohm": 50.0}},
            digitizer__inputs={"1": {"range_v": [0.05, 0.5]}, "2": {"range_v": [-0.4, 1.2]}},
        )
        errors = []
        with open_reservoir(config) as reservoir:
            layout = reservoir._layout  # pyright: ignore[reportAttributeAccessIssue]
            for dataset in range(10):
                u = np.random.default_rng(dataset).uniform(0, 0.5, (2100, 1))
                y = narma_series(u[:, 0])
                reservoir.reset()
                measured = reservoir.run(u[None])[0]
                truth = ikeda_reference.states(layout, u, QUIET, 0.8, 0.2, fine=16, lsb_v=0.45 / 4096)
                errors.append([_test_error(np.asarray(states), y) for states in (measured, truth)])
    bench, equation = np.array(errors).T
    ratio = bench / equation
    margin = 2.262 * ratio.std(ddof=1) / np.sqrt(10)  # t of 9 degrees of freedom, 95 %
    with capsys.disabled():
        print(f"\nNRMSE {bench.mean():.3f}, equation {equation.mean():.3f}: {ratio.mean():.4f} ± {margin:.4f}")  # noqa: T201
    assert np.isfinite(errors).all()
    assert ratio.mean() - margin > 0.95
    assert ratio.mean() + margin < 1.05


def _test_error(states: np.ndarray, y: np.ndarray) -> float:
    """Of a readout that learned from steps 100 to 1100."""
    readout = RidgeReadout(alpha=1e-6).fit(states[100:1100], y[100:1100, None])
    return nrmse(readout.predict(states[1100:])[:, 0], y[1100:])
