"""Small runs whose trained models leave for the edge, and what their models compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from reservoir_hw import Experiment
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.experiment.deploy.trained import trained_row
from reservoir_hw.experiment.run.by_gradients import opened_model
from reservoir_hw.readout.training import load_weights
from reservoir_hw.tasks.text.task import Text

NARMA = """\
task: {kind: narma, train_steps: 1200, test_steps: 400}
reservoir: {kind: esn, nodes: 40, input_scaling: 0.5}
readout: {kind: ridge, alpha: 1e-4, washout: 50}
run: {folder: FOLDER/runs, states: null}
"""
TEXT = """\
task: {kind: text, corpus: FOLDER/text.txt, validation: 0.1, test: 0.1}
reservoir: {kind: esn, nodes: 12}
readout: {kind: linear, embedding: {kind: random, width: 4}}
training: {gradient: {epochs: 2, context: 8, batch: 16, learning_rate: 1e-2, accelerator: cpu}}
run: {folder: FOLDER/runs, states: null}
"""
READOUTS: dict[str, Any] = {
    "linear": {"kind": "linear", "embedding": {"kind": "random", "width": 4}},
    "low_rank": {"kind": "low_rank", "rank": 3, "embedding": {"kind": "one_hot"}},
    "attention": {"kind": "attention", "hidden": 5, "embedding": {"kind": "random", "width": 4}},
    "laerc": {"kind": "laerc", "width": 4, "layers": 2},
}


def write_text(folder: Path) -> None:
    """Each letter mostly follows from the one before."""
    draws = generator(0, "text").random(3000)
    letters, at = [], 0
    for draw in draws:
        at = (at + 1) % 5 if draw < 0.9 else int(draw * 1000) % 5
        letters.append("abcde"[at])
    (folder / "text.txt").write_text("".join(letters))


def run_of(folder: Path, text: str, **settings: Any) -> Path:
    """Run an experiment (`a__b` stands for the key a.b); returns the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "experiment.yaml"
    path.write_text(text.replace("FOLDER", str(folder)))
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return Experiment.from_file(path, set=changes, environment={}).run(report=False).folder


def text_run(folder: Path, kind: str, **settings: Any) -> Path:
    """A trained language model."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder)
    return run_of(folder, TEXT, readout=READOUTS[kind], **settings)


@contextmanager
def model_of(run: Path, reservoir: Path | None = None) -> Iterator[tuple[Any, list[Reservoir]]]:
    """A trained language model in torch, around its open devices."""
    row = trained_row(run, reservoir=reservoir)
    task = cast(Text, row.point.config.task.build())
    with opened_model(row.point, task) as (model, devices):
        load_weights(model, row.file())
        model.eval()
        yield model, devices


def logits_of(model: Any, tokens: np.ndarray) -> np.ndarray:
    """What torch says: (batch, time, vocabulary)."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).numpy()


class Seen:
    """Keeps the states that a reservoir answers."""

    def __init__(self) -> None:
        self.states: list[np.ndarray] = []

    def was_reset(self, *, from_rest: bool) -> None:
        del from_rest

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        del inputs, seconds
        assert states is not None
        self.states.append(states.copy())


def bound(expected: np.ndarray) -> float:
    """Of the certificate: largest |Δ|."""
    return 1e-5 * max(1.0, float(np.abs(expected).max()))
