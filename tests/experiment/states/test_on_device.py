"""Experiments whose states stay where the reservoir has computed them, as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.experiment.run import in_one_pass
from reservoir_hw.experiment.states import drive
from reservoir_hw.readout import RidgeReadout

torch = pytest.importorskip("torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NARMA = {"kind": "narma", "train_steps": 3000, "test_steps": 1000}


def run(folder: Path, engine: str, device: str = "cpu", **more: Any) -> Experiment:
    network = {"kind": "esn", "nodes": 50, "input_scaling": 0.5, "dtype": more.pop("dtype", "float64")}
    sections = {
        "task": NARMA,
        "reservoir": {**network, "engine": engine, "device": device},
        "readout": {"kind": "ridge", "washout": 50},
        "run": {"folder": str(folder / engine), "chunk_steps": 700},
    }
    one = Experiment({**sections, **more})
    one.run(report=False)
    return one


def seen_by(patch: pytest.MonkeyPatch, method: str) -> list[Any]:
    """The states that a readout is given from now on."""
    seen: list[Any] = []
    given = getattr(RidgeReadout, method)

    def noted(self: Any, states: Any, *args: Any, **options: Any) -> Any:
        seen.append(states)
        return given(self, states, *args, **options)

    patch.setattr(RidgeReadout, method, noted)
    return seen


def scores(one: Experiment) -> dict[str, float]:
    assert one.result is not None
    return one.result.metrics["rows"][0]["metrics"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"dtype": "float32"},
        {"readout": {"kind": "ridge", "alpha": "gcv", "input_connection": True}},
        {"readout": {"kind": "ridge", "solver": "qr"}},
        {"readout": {"kind": "rls", "keep_learning": True}},
        {"training": {"repetitions": 2}},
        {"task": {"kind": "elman_grammar", "sentences": 100}},
        {"task": {"kind": "lorenz", "train_steps": 500}},
    ],
)
def test_scores_are_those_of_states_in_numpy(tmp_path: Path, device: str, more: Any) -> None:
    wanted = run(tmp_path, "numba", **more)
    found = run(tmp_path, "torch", device, **more)
    assert scores(found) == pytest.approx(scores(wanted), rel=1e-6, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("device", DEVICES)
def test_states_reach_the_readout_as_tensors_of_the_device(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned, read = (seen_by(monkeypatch, method) for method in ("partial_fit", "predict"))
    run(tmp_path, "torch", device)
    assert len(learned + read) > 4
    assert {states.device.type for states in learned + read} == {device}


def test_a_readout_that_does_not_ask_for_tensors_gets_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = scores(run(tmp_path, "torch"))
    monkeypatch.setattr(RidgeReadout, "takes_tensors", False)
    seen = seen_by(monkeypatch, "partial_fit")
    assert scores(run(tmp_path, "torch")) == pytest.approx(wanted, abs=1e-6)
    assert seen
    assert all(isinstance(states, np.ndarray) for states in seen)


def test_chunks_are_as_long_as_memory_lets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(tmp_path, "torch")
    assert wanted.result is not None
    seen = seen_by(monkeypatch, "partial_fit")
    # What the libraries and the sums take, and 200 kB.
    monkeypatch.setattr(in_one_pass, "free_bytes", lambda device: (64 << 20) + 234_000 + 200_000)
    found = run(tmp_path, "torch")
    assert scores(found) == pytest.approx(scores(wanted), abs=1e-6)
    lengths = [states.shape[1] for states in seen]
    assert 50 < max(lengths) < 200
    assert sum(lengths) == 3000
    monkeypatch.setattr(in_one_pass, "free_bytes", lambda device: 1000)
    with pytest.raises(OutOfMemory, match="not even one step would fit"):
        run(tmp_path, "torch")


def test_inputs_go_to_the_device_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    to_tensor = drive.to_tensor

    def counted(value: Any, *args: Any) -> Any:
        sent.append(value.size)
        return to_tensor(value, *args)

    monkeypatch.setattr(drive, "to_tensor", counted)
    one = run(tmp_path, "torch")
    assert one.result is not None
    assert sum(sent) == one.estimate().device_steps
