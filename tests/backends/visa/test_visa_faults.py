"""Planned faults of emulated instruments, in each phase of a burst."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_lab import QUIET, emulated_lab

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.errors import DeviceDisconnected, DeviceError, DeviceFault, DeviceTimeout
from reservoir_hw.emulators.bench import BenchConfig
from reservoir_hw.emulators.faults import FaultPlan

UPLOAD = {"instrument": "generator", "at": "DATA:ARB:DAC"}
TRIGGER = {"instrument": "generator", "at": "*TRG"}
PREAMBLE = {"instrument": "digitizer", "at": ":WAV:PRE?"}
FETCH = {"instrument": "digitizer", "at": ":WAV:DATA?"}
BUSY, SLOW = {"kind": "busy", "seconds": 3.0}, {"kind": "slow", "seconds": 3.0}

# Without meaning in upload and trigger: a late answer, where none is due; a block that is short, clipped or of a wrong
# length, where none is read.
FAULTS: list[tuple[dict[str, Any], type[DeviceError], str | None]] = [
    ({**UPLOAD, **BUSY}, DeviceTimeout, None),
    ({**TRIGGER, **BUSY}, DeviceTimeout, None),
    ({**FETCH, **BUSY}, DeviceTimeout, None),
    ({**FETCH, **SLOW}, DeviceTimeout, None),
    ({**UPLOAD, "kind": "error"}, DeviceFault, "the instrument reports -310"),
    ({**TRIGGER, "kind": "error"}, DeviceFault, "the instrument reports -310"),
    ({**PREAMBLE, "kind": "error"}, DeviceFault, "the instrument reports -310"),
    ({**UPLOAD, "kind": "ignored"}, DeviceFault, "the instrument reports"),
    ({**TRIGGER, "kind": "ignored"}, DeviceFault, "trigger not met within"),
    ({**FETCH, "kind": "ignored"}, DeviceTimeout, None),
    ({**UPLOAD, "kind": "disconnect"}, DeviceDisconnected, None),
    ({**TRIGGER, "kind": "disconnect"}, DeviceDisconnected, None),
    ({**FETCH, "kind": "disconnect"}, DeviceDisconnected, None),
    ({**FETCH, "kind": "short_block"}, DeviceTimeout, None),
    ({**FETCH, "kind": "wrong_length"}, DeviceFault, "samples was due"),
]


def plan(*faults: dict[str, Any]) -> FaultPlan:
    return FaultPlan.model_validate_json(json.dumps({"faults": faults}), strict=True)


def name(case: tuple[dict[str, Any], Any, Any]) -> str:
    return f"{case[0]['kind']} {case[0]['at']}"


@pytest.mark.parametrize("case", FAULTS, ids=name)
def test_each_fault_in_each_phase(case: tuple[dict[str, Any], type[DeviceError], str | None]) -> None:
    fault, kind, said = case
    # Fetched are the monitor and the answer: the third fetch, and the second of the others, belong to the second burst.
    third = 3 if fault["instrument"] == "digitizer" else 2
    u = np.random.default_rng(0).uniform(-1, 1, (1, 80, 1))
    with emulated_lab(BenchConfig().with_device(QUIET), faults=plan({**fault, "occurrence": third})) as lab:
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
            assert np.abs(again[:, :60] - states).max() < 0.02 * again.std()
        assert not lab.on()


def test_what_is_clipped_is_counted() -> None:
    with (
        emulated_lab(faults=plan({**FETCH, "kind": "clipped", "bytes": 20})) as lab,
        open_reservoir(lab.config) as reservoir,
    ):
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
@pytest.mark.parametrize("at", [UPLOAD, TRIGGER, FETCH], ids=["upload", "trigger", "fetch"])
def test_ctrl_c_in_each_phase(at: dict[str, Any]) -> None:
    with emulated_lab(faults=plan({**at, "kind": "slow" if at is FETCH else "busy", "seconds": 2.0})) as lab:
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
def test_a_harvest_goes_on_after_each_fault(tmp_path: Path) -> None:
    """Chunk by chunk the same bits as without faults, where nothing else differs between bursts."""
    experiment = tmp_path / "narma.yaml"
    experiment.write_text(
        "task: {kind: narma, train_steps: 300, test_steps: 100}\n"
        "reservoir: {kind: esn}\nreadout: {kind: ridge, washout: 0}\n"
    )
    still = BenchConfig(trigger_jitter=0.0, digitizer_ppm=0.0).with_device(QUIET)

    def harvested(folder: str, faults: FaultPlan | None) -> tuple[np.ndarray, int]:
        with emulated_lab(still, faults=faults) as lab:
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
    faults = [{**case[0], "occurrence": 2 + number} for number, case in enumerate(FAULTS)]
    resumed, attempts = harvested("resumed", plan(*faults))
    assert attempts > 5
    np.testing.assert_array_equal(resumed, whole)
