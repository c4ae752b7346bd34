"""Planned faults of emulated instruments, in each phase of a burst."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_lab import QUIET, emulated_lab

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.errors import DeviceDisconnected, DeviceError, DeviceFault, DeviceTimeout, StateLost
from reservoir_hw.drivers.visa.keysight import KeysightInfiniiVision
from reservoir_hw.drivers.visa.roles import Waveform
from reservoir_hw.emulators.bench import BenchConfig
from reservoir_hw.emulators.faults import FaultPlan

# What a message of each phase of a burst begins with.
KEYSIGHT = {
    "upload": {"instrument": "generator", "at": "DATA:ARB:DAC"},
    "trigger": {"instrument": "generator", "at": "*TRG"},
    "preamble": {"instrument": "digitizer", "at": ":WAV:PRE?"},
    "fetch": {"instrument": "digitizer", "at": ":WAV:DATA?"},
}
TEKTRONIX = {
    "upload": {"instrument": "generator", "at": "DATA:DATA EMEM"},
    "trigger": {"instrument": "generator", "at": "*TRG"},
    "preamble": {"instrument": "digitizer", "at": ":WFMO:NR_P?"},
    "fetch": {"instrument": "digitizer", "at": "CURV?"},
}
PHASES = {"keysight": KEYSIGHT, "tektronix": TEKTRONIX}
BUSY, SLOW = {"kind": "busy", "seconds": 3.0}, {"kind": "slow", "seconds": 3.0}

# Without meaning in upload and trigger: a late answer, where none is due; a block that is short, clipped or of a wrong
# length, where none is read.
FAULTS: list[tuple[str, dict[str, Any], type[DeviceError], str | None]] = [
    ("upload", BUSY, DeviceTimeout, None),
    ("trigger", BUSY, DeviceTimeout, None),
    ("fetch", BUSY, DeviceTimeout, None),
    ("fetch", SLOW, DeviceTimeout, None),
    ("upload", {"kind": "error"}, DeviceFault, "the instrument reports -?310"),
    ("trigger", {"kind": "error"}, DeviceFault, "the instrument reports -?310"),
    ("preamble", {"kind": "error"}, DeviceFault, "the instrument reports -?310"),
    # The Tektronix generator has no error for it: its memory is looked at.
    ("upload", {"kind": "ignored"}, DeviceFault, r"the instrument reports|DATA:POIN\? EMEM says 2"),
    ("trigger", {"kind": "ignored"}, DeviceFault, "trigger not met within"),
    ("fetch", {"kind": "ignored"}, DeviceTimeout, None),
    ("upload", {"kind": "disconnect"}, DeviceDisconnected, None),
    ("trigger", {"kind": "disconnect"}, DeviceDisconnected, None),
    ("fetch", {"kind": "disconnect"}, DeviceDisconnected, None),
    ("fetch", {"kind": "short_block"}, DeviceTimeout, None),
    ("fetch", {"kind": "wrong_length"}, DeviceFault, "samples was due"),
]
# Nothing differs between bursts.
STILL = BenchConfig(trigger_jitter=0.0, digitizer_ppm=0.0).with_device(QUIET)
DIALECTS = ["tektronix", pytest.param("keysight", marks=pytest.mark.slow)]


def plan(*faults: dict[str, Any]) -> FaultPlan:
    return FaultPlan.model_validate_json(json.dumps({"faults": faults}), strict=True)


@pytest.mark.parametrize("value", [9.9e37, np.nan])
def test_a_sample_that_is_no_number(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drivers, such as those of PyMeasure, give what the instrument says."""
    ordinary = KeysightInfiniiVision.fetch

    def fetch(self: KeysightInfiniiVision) -> dict[int, Waveform]:
        records = ordinary(self)
        records[1].volts[700] = value
        return records

    monkeypatch.setattr(KeysightInfiniiVision, "fetch", fetch)
    with emulated_lab() as lab:
        with open_reservoir(lab.config) as reservoir, pytest.raises(DeviceFault, match="sample 700 of input 1 is"):
            reservoir.run(np.zeros((1, 10, 1)))
        assert not lab.on()


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("phase", "fault", "kind", "said"), FAULTS, ids=[f"{f['kind']} {p}" for p, f, _, _ in FAULTS])
def test_each_fault_in_each_phase(
    dialect: str, phase: str, fault: dict[str, Any], kind: type[DeviceError], said: str | None
) -> None:
    at = PHASES[dialect][phase]
    # Fetched are the monitor and the answer: the third fetch, and the second of the others, belong to the second burst.
    third = 3 if at["instrument"] == "digitizer" else 2
    u = np.random.default_rng(0).uniform(-1, 1, (1, 80, 1))
    faults = plan({**at, **fault, "occurrence": third})
    with emulated_lab(STILL, dialect=dialect, faults=faults) as lab:
        config = {**lab.config}
        # Two bursts, of 60 and of 20 steps.
        config["generator"] = {**config["generator"], "memory_samples": 46261, "timeout_s": 0.5}
        config["digitizer"] = {**config["digitizer"], "timeout_s": 0.5}
        with open_reservoir(config) as reservoir:
            with pytest.raises(kind, match=said) as raised:
                reservoir.run(u)
            assert not lab.on()
            assert raised.value.steps_done == 60
            states = raised.value.states
            assert states is not None
            assert states.shape == (1, 60, 50)
            reservoir.reset()
            again = reservoir.run(u)
            np.testing.assert_array_equal(again[:, :60], states)
        assert not lab.on()


@pytest.mark.slow
def test_an_emergency_stop_beside_a_call_that_hangs() -> None:
    faults = plan({**KEYSIGHT["fetch"], "kind": "busy", "seconds": 2.0})
    with (
        emulated_lab(STILL, faults=faults) as lab,
        open_reservoir(lab.config) as reservoir,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(reservoir.run, np.zeros((1, 5, 1)))
        while not lab.on():
            time.sleep(0.01)
        reservoir.emergency_stop()
        assert not lab.on()
        assert not running.done()
        # What it brings is a burst that was cut, or nothing: no other one is played.
        assert isinstance(running.exception(), DeviceFault)
        with pytest.raises(DeviceFault, match="its emergency stop was called"):
            reservoir.reset()
        with pytest.raises(StateLost):
            reservoir.run(np.zeros((1, 5, 1)))
        assert not lab.on()


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["keysight", "tektronix"])
def test_what_is_clipped_is_counted(dialect: str) -> None:
    clipped = {**PHASES[dialect]["fetch"], "kind": "clipped", "bytes": 20, "signed": dialect == "tektronix"}
    with emulated_lab(dialect=dialect, faults=plan(clipped)) as lab, open_reservoir(lab.config) as reservoir:
        reservoir.run(np.zeros((1, 5, 1)))
        assert reservoir.counters.saturations == 10
        reservoir.run(np.zeros((1, 5, 1)))
        assert reservoir.counters.saturations == 10


INTERRUPTED = """
import json, sys
import numpy as np
from reservoir_hw import Experiment, open_reservoir

with open_reservoir(json.loads(sys.argv[1])) as reservoir:
    print("open", flush=True)
    reservoir.run(np.zeros((1, 5, 1)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["upload", "trigger", "fetch"])
def test_ctrl_c_in_each_phase(phase: str) -> None:
    fault = {**KEYSIGHT[phase], "kind": "slow" if phase == "fetch" else "busy", "seconds": 2.0}
    with emulated_lab(faults=plan(fault)) as lab:
        command = [sys.executable, "-c", INTERRUPTED, json.dumps(lab.config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"open\n"
            time.sleep(1.0)
            owner.send_signal(signal.SIGINT)
            assert owner.wait(30) != 0
        assert not lab.on()
        with open_reservoir(lab.config) as reservoir:
            reservoir.run(np.zeros((1, 5, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PHASES)
def test_a_harvest_goes_on_after_each_fault(dialect: str, tmp_path: Path) -> None:
    """Chunk by chunk the same bits as without faults."""
    experiment = tmp_path / "narma.yaml"
    experiment.write_text(
        "task: {kind: narma, train_steps: 300, test_steps: 100}\n"
        "reservoir: {kind: esn}\nreadout: {kind: ridge, washout: 0}\n"
    )

    def harvested(folder: str, faults: FaultPlan | None) -> tuple[np.ndarray, int]:
        with emulated_lab(STILL, dialect=dialect, faults=faults) as lab:
            lab.config["generator"]["timeout_s"] = lab.config["digitizer"]["timeout_s"] = 0.5
            (tmp_path / "bench.yaml").write_text(json.dumps(lab.config))
            sets = {"run.states": str(tmp_path / folder), "run.chunk_steps": 50}
            for attempt in range(1, 50):
                try:
                    (store,) = Experiment.from_file(experiment, reservoir=tmp_path / "bench.yaml", set=sets).harvest()
                except DeviceError:
                    assert not lab.on()
                else:
                    parts = [
                        dataset.read_states(region).reshape(-1)
                        for dataset in store.datasets.values()
                        for region in dataset.regions()
                    ]
                    return np.concatenate(parts), attempt
        raise AssertionError("the harvest never ended")

    whole, _ = harvested("whole", None)
    # Each strikes once, at bursts that are some apart.
    faults = [{**PHASES[dialect][phase], **fault, "occurrence": 2 + k} for k, (phase, fault, _, _) in enumerate(FAULTS)]
    resumed, attempts = harvested("resumed", plan(*faults))
    assert attempts > 5
    np.testing.assert_array_equal(resumed, whole)
