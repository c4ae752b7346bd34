"""Simulations of one shape in `vary`: driven together, with the rows and records of single runs."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from reservoir_hw.backends.simulated.population import Population
from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.experiment import Experiment
from reservoir_hw.experiment.run import experiment as module
from reservoir_hw.experiment.run.result import Result
from reservoir_hw.tasks import datasets

ESN = {"kind": "esn", "nodes": 20}
NOISE = {"drive": {"bits": 4, "range": [-0.2, 0.4]}, "loop": {"noise": 0.01}, "readout": {"bits": 3, "noise": 0.01}}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reservoirs each call that drives some of them together has got."""
    seen: list[int] = []

    run = Population.run

    def counted(self: Population, u: Any, out: Any = None) -> Any:
        states = run(self, u, out)
        seen.append(len(states))
        return states

    monkeypatch.setattr(Population, "run", counted)
    return seen


def experiment(folder: Path, **sections: Any) -> Experiment:
    return Experiment(
        {
            "task": {"kind": "narma", "order": 5, "train_steps": 300, "test_steps": 200},
            "reservoir": ESN,
            "readout": {"kind": "ridge"},
            "run": {"folder": str(folder), "chunk_steps": 128},
            **sections,
        }
    )


def arrays(result: Result) -> dict[str, np.ndarray]:
    """Everything that the run folder has of its readouts."""
    found = {path.name: np.load(path) for path in sorted(result.folder.glob("outputs/*.npy"))}
    for path in sorted(result.folder.glob("readout/*.safetensors")):
        with safe_open(path, "np") as file:
            found |= {f"{path.name} {name}": file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def records(result: Result) -> Any:
    """The rows of the provenance, without times."""
    rows = json.loads((result.folder / "provenance.json").read_text())["rows"]
    for row in rows:
        assert row.pop("seconds") > 0
        assert row.pop("processor_seconds") >= 0
        del row["reservoir"]["latency"], row["reservoir"]["reset"]["duration_s"]
    return rows


CASES: dict[str, dict[str, Any]] = {
    "seeds": {"reservoir": {**ESN, "vary": {"seed": [3, 1, 2]}}},
    "settings, and points that share a drive": {
        "reservoir": {**ESN, "vary": {"leak_rate": [0.5, 1.0], "spectral_radius": [0.4, 0.9]}},
        "vary": {"readout.alpha": [1e-6, 1e-2]},
    },
    "noise, and what it warns of": {
        "reservoir": {**ESN, "nonidealities": NOISE, "out_of_range": "clip", "vary": {"seed": [3, 1]}}
    },
    "repetitions": {
        "reservoir": {**ESN, "nonidealities": NOISE, "out_of_range": "clip", "vary": {"seed": [3, 1]}},
        "training": {"repetitions": 2},
    },
    "delay loops": {"reservoir": {"kind": "delay_loop", "nodes": 20, "vary": {"seed": [3, 1]}}},
    "a readout that keeps learning": {"readout": {"kind": "rls"}, "reservoir": {**ESN, "vary": {"seed": [3, 1]}}},
}


@pytest.mark.parametrize("case", CASES)
def test_rows_and_records_are_those_of_single_runs(case: str, tmp_path: Path, groups: list[int]) -> None:
    check_against_single_runs(CASES[case], tmp_path, groups)


@pytest.mark.skipif(
    not os.environ.get(datasets.FOLDER_VARIABLE), reason="no folder with data sets: nothing is downloaded"
)
def test_many_sequences_of_sparse_networks(tmp_path: Path, groups: list[int]) -> None:
    network = {**ESN, "connections_per_node": 3, "vary": {"seed": [3, 1]}}
    check_against_single_runs({"task": {"kind": "japanese_vowels"}, "reservoir": network}, tmp_path, groups)


def check_against_single_runs(sections: dict[str, Any], tmp_path: Path, groups: list[int]) -> None:
    alone = experiment(tmp_path, **sections).run(report=False, together=False)
    assert not groups
    told: list[tuple[int, int]] = []
    together = experiment(tmp_path, **sections).run(lambda _, done, total: told.append((done, total)), report=False)
    drives = len({row["reservoir"]["identity"]["fingerprint"] for row in records(alone)})
    assert set(groups) == {drives}
    assert [row.evaluation.metrics for row in together.rows] == [row.evaluation.metrics for row in alone.rows]
    assert records(together) == records(alone)
    assert together.warnings == alone.warnings
    assert together.notes == alone.notes
    expected = arrays(alone)
    assert expected.keys() == arrays(together).keys()
    for name, array in arrays(together).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert told[-1][0] == told[-1][1] == told[0][1]


def test_tensors_agree_with_single_runs_within_rounding(tmp_path: Path, groups: list[int]) -> None:
    pytest.importorskip("torch")
    reservoir = {**ESN, "engine": "torch", "vary": {"seed": [3, 1]}}
    alone, together = (
        experiment(tmp_path, reservoir=reservoir).run(report=False, together=one) for one in (False, True)
    )
    assert set(groups) == {2}
    for row, expected in zip(together.rows, alone.rows, strict=True):
        assert row.evaluation.metrics == pytest.approx(expected.evaluation.metrics, rel=1e-3)


def test_what_is_not_of_one_shape_goes_on_in_turn(tmp_path: Path, groups: list[int]) -> None:
    both = {**ESN, "vary": {"nodes": [10, 20], "seed": [0, 1]}}
    experiment(tmp_path, reservoir=both).run(report=False)
    assert set(groups) == {2}
    groups.clear()
    experiment(tmp_path, vary={"task.order": [3, 5]}).run(report=False)
    experiment(tmp_path, vary={"training.priming_passes": [0, 1]}).run(report=False)
    recorded = {"folder": str(tmp_path), "record": str(tmp_path / "record"), "chunk_steps": 128}
    seeds = {**ESN, "vary": {"seed": [0, 1]}}
    experiment(tmp_path, run=recorded, reservoir=seeds).run(report=False)
    forecast = {"kind": "lorenz", "train_steps": 200, "closed_loop": {"starts": 2, "forecast_steps": 20}}
    experiment(tmp_path, task=forecast, reservoir=seeds).run(report=False)
    states = {"folder": str(tmp_path), "states": str(tmp_path / "states")}
    harvested = experiment(tmp_path, run=states, reservoir=seeds)
    harvested.harvest()
    harvested.run(report=False)
    assert not groups


def test_memory_bounds_how_many_are_driven_at_once(
    tmp_path: Path, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 128 steps of 20 float32 states, twice, and sums of 20 x 20 in float64.
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 3 * 8 * 20 * (128 + 20))
    result = experiment(tmp_path, reservoir={**ESN, "vary": {"seed": list(range(7))}}).run(report=False)
    assert set(groups) == {3}
    assert len(result.rows) == 7
    monkeypatch.setattr(module, "_DRIVES_AT_ONCE", 2)
    groups.clear()
    experiment(tmp_path, reservoir={**ESN, "vary": {"seed": list(range(4))}}).run(report=False)
    assert set(groups) == {2}


def test_after_a_fault_the_points_before_it_are_kept(tmp_path: Path, groups: list[int]) -> None:
    def failed(together: bool) -> tuple[Result, str, list[int]]:
        linear = {**ESN, "activation": "identity", "vary": {"spectral_radius": [0.5, 0.9, 1e30, 0.7]}}
        found = experiment(tmp_path, reservoir=linear)
        done: list[int] = []
        with pytest.raises(DeviceFault) as caught:
            found.run(lambda _, steps, total: done.append(total - steps), report=False, together=together)
        assert found.result is not None
        return found.result, str(caught.value), done

    alone, together = failed(False), failed(True)
    assert not groups
    assert [row.evaluation.metrics for row in together[0].rows] == [row.evaluation.metrics for row in alone[0].rows]
    assert len(together[0].rows) == 2
    assert together[1] == alone[1]
    assert together[2][-1] == alone[2][-1] > 0
    unfinished = [
        json.loads((one[0].folder / "provenance.json").read_text())["unfinished"] for one in (alone, together)
    ]
    assert unfinished[0]["point"] == unfinished[1]["point"] == {"reservoir.spectral_radius": 1e30}
    assert "further_reservoirs" not in unfinished[1]


def test_ctrl_c_keeps_the_groups_before_it(tmp_path: Path, groups: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DRIVES_AT_ONCE", 2)
    found = experiment(tmp_path, reservoir={**ESN, "vary": {"seed": list(range(6))}})

    def interrupt(what: str, done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.run(interrupt, report=False)
    assert found.result is not None
    assert (len(found.result.rows), found.result.status) == (2, "interrupted")
    unfinished = json.loads((found.result.folder / "provenance.json").read_text())["unfinished"]
    assert unfinished["point"] == {"reservoir.seed": 2}
    assert len(unfinished["further_reservoirs"]) == 1


def test_rows_come_one_by_one_and_may_end_the_run(tmp_path: Path) -> None:
    found = experiment(tmp_path, reservoir={**ESN, "vary": {"seed": [0, 1, 2]}})
    seen: list[Any] = []

    def on_row(row: Any) -> None:
        seen.append(row.point["reservoir.seed"])
        if len(seen) == 2:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        found.run(report=False, on_row=on_row)
    assert seen == [0, 1]
    assert found.result is not None
    assert len(found.result.rows) == 2


def test_what_a_group_took_is_shared_out_among_its_rows(tmp_path: Path) -> None:
    result = experiment(tmp_path, reservoir={**ESN, "vary": {"seed": list(range(6))}}).run(report=False)
    seconds = [row.details["seconds"] for row in result.rows]
    assert max(seconds) < sum(seconds) / 2
    assert sum(seconds) <= result.seconds
