"""Language models around a small network for trainings, and examples to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from training_case import VOCABULARY, options

from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.backends.simulated.nonidealities.configuration import Nonidealities
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.networks import draw_weights
from reservoir_hw.readout import AttentionReadout, LinearReadout, ReservoirLayer, ReservoirLM, random_embedding
from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier, TrainedCandidate
from reservoir_hw.readout.training import Progress, TrainingOptions

NODES, WIDTH = 20, 4


class Death(BaseException):
    """Stands for the end of the process."""


def dies_at(step: int) -> Any:
    """Ends the process in the row of the log of this step, or of a later one."""

    def progress(now: Progress) -> None:
        if now.row.step >= step:
            raise Death

    return progress


def network(noise: float = 0.0, seed: int = 0, **keys: Any) -> Esn:
    weights = draw_weights(NODES, WIDTH, seed=seed, spectral_radius=0.9)
    found = Nonidealities.model_validate({"readout": {"noise": noise}})
    return Esn(weights, dtype="float64", nonidealities=found, **keys)


def language_model(
    reservoir: Reservoir, *, attention: bool = False, trainable: bool = False, seed: int = 1, **keys: Any
) -> ReservoirLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        readout = AttentionReadout(NODES, 3, VOCABULARY) if attention else LinearReadout(NODES, VOCABULARY)
    layer = ReservoirLayer(reservoir, **keys)
    model = ReservoirLM(random_embedding(VOCABULARY, WIDTH, seed=seed), layer, readout).double()
    model.embedding.requires_grad_(trainable)
    return model


class Deep(nn.Module):
    """A model of somebody's own, with its reservoir where nobody would look; it tells of none."""

    def __init__(self, reservoir: Reservoir, **keys: Any) -> None:
        super().__init__()
        self.vocabulary = VOCABULARY
        film = nn.Sequential(random_embedding(VOCABULARY, WIDTH, seed=1), ReservoirLayer(reservoir, **keys))
        self.parts = nn.ModuleList([nn.ModuleDict({"film": film})])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.out = nn.Linear(NODES, VOCABULARY)
        self.seen: set[torch.dtype] = set()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        part: Any = self.parts[0]
        states = part["film"](tokens)
        self.seen.add(states.dtype)
        return nn.functional.cross_entropy(self.out(states).flatten(0, 1), targets.flatten(), ignore_index=-1)


def epochs(**changes: Any) -> TrainingOptions:
    settings: dict[str, Any] = {"steps": None, "epochs": 4, "shard_epochs": 4, "accumulate": 1, "log_steps": 1}
    return options(**{**settings, **changes})


class Ups:
    """Series that drift up or down, of 2 to 12 steps: which of both is said by the label."""

    def __init__(self, count: int = 90, name: str = "train") -> None:
        drawn = generator(0, name)
        self.labels = drawn.integers(0, 2, count)
        self.series = [
            (drawn.normal(size=(steps, 3)) + (0.5 if label else -0.5)).astype(np.float32)
            for label, steps in zip(self.labels, drawn.integers(2, 13, count), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.series[index], int(self.labels[index])


class InBatches:
    """The same examples in batches of six, and a last one of three."""

    def __init__(self, data: Ups) -> None:
        self._data = data

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for first in range(0, len(self._data), 6):
            rows = [self._data[n] for n in range(first, min(first + 6, len(self._data)))]
            u = nn.utils.rnn.pad_sequence([torch.from_numpy(one) for one, _ in rows], batch_first=True)
            yield u, torch.tensor([label for _, label in rows]), torch.tensor([len(one) for one, _ in rows])


def classifier(seed: int = 0) -> SequenceClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SequenceClassifier(GatedRecurrence(TrainedCandidate(3, 5)), 2)


def by_examples(**changes: Any) -> TrainingOptions:
    settings: dict[str, Any] = {"epochs": 6, "batch": 8, "learning_rate": 3e-2, "accelerator": "cpu"}
    return TrainingOptions(**{**settings, "evaluation_steps": 10, "checkpoint_steps": 4, **changes})
