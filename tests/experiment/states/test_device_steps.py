"""The estimate, the progress and the counters of a device say what the device itself has counted, to the last step."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import chemical_cell
import pytest
from shared import narma

from reservoir_hw import Experiment
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.experiment.bench.bench import Bench
from reservoir_hw.experiment.devices.measure import measure
from tests.served import free_address, served

CONTINUITIES = ["held", "replayed", "free_running"]
RESETS: dict[str, dict[str, Any]] = {
    "by a call": {"reset_call": "chemical_cell:to_rest"},
    "by a washout": {"reset": {"kind": "washout", "steps": 7}},
    "probed": {"reset": {"kind": "waveform", "values": [[0.0]] * 5, "probe_steps": 11}},
}
WAYS: dict[str, dict[str, Any]] = {
    "from rest": {},
    "primed": {"priming_passes": 2},
    "repeated": {"repetitions": 3},
    "packed": {"guard_steps": 10},
    "continued": {"continuous": True},
}

# With the period of 0.2 s a chunk of a replayed device has four memories, of a held one 50 steps.
CHUNKS = [(1000, None), (64, None), (1000, 0.2)]
QUICK = {("by a call", "primed"), ("by a washout", "continued"), ("probed", "repeated"), ("probed", "packed")}


def cell(continuity: str, reset: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "python", "call": "chemical_cell:drive", "nodes": 3, "inputs": 1, "continuity": continuity,
        "memory_steps": 20, "deterministic": True, "input_range": [-2, 2], "simulated": False, **RESETS[reset], **more,
    }  # fmt: skip


class Told:
    """What a progress bar would show."""

    def __init__(self) -> None:
        chemical_cell.driven = 0
        self.shown: list[tuple[int, int]] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.shown.append((done, total))

    def all_agree(self, estimated: int, counted: int) -> None:
        done, total = self.shown[-1]
        said = {"estimate": estimated, "done": done, "total": total, "counters": counted}
        assert said == dict.fromkeys(said, chemical_cell.driven)
        assert self.shown[0][1] == total


def experiment(folder: Path, reservoir: dict[str, Any], chunk_steps: int, **training: Any) -> Experiment:
    task, run = {"order": 3, "train_steps": 300, "test_steps": 90}, {"chunk_steps": chunk_steps}
    reservoir = {"nodes": None, **reservoir}
    return narma(folder, task=task, reservoir=reservoir, readout={"washout": 20}, training=training, run=run)


def harvests() -> list[Any]:
    """Every combination; of the quick ones each chunk meets each continuity and each way."""
    found = []
    for (at, reset_way), (turn, continuity), (number, chunk) in product(
        enumerate(product(RESETS, WAYS)), enumerate(CONTINUITIES), enumerate(CHUNKS)
    ):
        quick = reset_way in QUICK and (at + turn + number) % 3 == 0
        found.append(pytest.param(continuity, *reset_way, *chunk, marks=() if quick else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("continuity", "reset", "way", "chunk_steps", "period_s"), harvests())
def test_of_a_run_and_of_a_harvest(
    continuity: str, reset: str, way: str, chunk_steps: int, period_s: float | None, tmp_path: Path
) -> None:
    made = experiment(tmp_path, cell(continuity, reset, step_period_s=period_s), chunk_steps, **WAYS[way])
    told = Told()
    result = made.run(told, report=False)
    told.all_agree(made.estimate().device_steps, result.provenance["rows"][0]["reservoir"]["counters"]["steps"])
    estimated, told = made.estimate(harvest=True).device_steps, Told()
    (store,) = made.harvest(told)
    told.all_agree(estimated, store.segments[-1]["reservoir"]["counters"]["steps"])
    # The states are there now: nothing is driven, and what is read is all that was said.
    told = Told()
    made.run(told, report=False)
    assert chemical_cell.driven == 0
    assert told.shown[-1][0] == told.shown[-1][1]


@pytest.mark.parametrize("reset", ["by a washout", "probed"])
@pytest.mark.parametrize("continuity", ["held", "replayed"])
def test_of_a_closed_loop(continuity: str, reset: str, tmp_path: Path) -> None:
    document = {
        "task": {
            "kind": "henon", "train_steps": 300,
            "closed_loop": {"starts": 2, "forecast_steps": 9, "warmup_steps": 30},
        },
        "reservoir": cell(continuity, reset, input_range=[-1e6, 1e6]),
        "readout": {"kind": "ridge", "washout": 20},
        "run": {"folder": str(tmp_path), "states": None, "chunk_steps": 128},
    }  # fmt: skip
    made, told = Experiment(document), Told()
    counted = made.run(told, report=False).provenance["rows"][0]["reservoir"]["counters"]["steps"]
    told.all_agree(made.estimate().device_steps, counted)


@pytest.mark.slow
@pytest.mark.parametrize("continuity", CONTINUITIES)
def test_of_measures_and_of_a_bench(continuity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reservoir_hw.experiment.bench.standard.SETTINGS", 2)
    file = tmp_path / "cell.yaml"
    file.write_text(json.dumps(cell(continuity, "probed")))
    plans: list[str] = []
    told = Told()
    wanted = ["memory_capacity", "drift"]
    result = measure(
        file, only=wanted, steps=600, repeats=2, washout=50, folder=tmp_path, on_plan=plans.append, progress=told
    )
    estimated = int(plans[0].split(" ")[0].replace(",", ""))
    told.all_agree(estimated, result.provenance["rows"][0]["reservoir"]["counters"]["steps"])
    bench = Bench(file, set=None, only=["narma10"], quick=True, budget=None, folder=tmp_path / "bench")
    told = Told()
    bench.run(progress=told)
    assert bench.cost.steps == chemical_cell.driven
    assert told.shown[-1][0] == told.shown[-1][1]


def test_of_a_device_that_says_only_when_it_is_opened_what_it_repeats(tmp_path: Path) -> None:
    address = free_address()
    device = build_reservoir(reservoir_config(cell("replayed", "by a call", step_period_s=0.2)))
    with served(device, address):
        made, told = experiment(tmp_path, {"kind": "zmq", "address": address}, 1000), Told()
        made.run(told, report=False)
        assert told.shown[-1] == (chemical_cell.driven,) * 2
        told = Told()
        made.harvest(told)
        assert told.shown[-1] == (chemical_cell.driven,) * 2
