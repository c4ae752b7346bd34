"""Parts of somebody's own: torch modules, a loss, a task of labelled trials."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor, nn

from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task, TaskConfig, checked_outputs


class Net(nn.Module):
    """Two layers, each step by itself."""

    def __init__(self, nodes: int, outputs: int, inputs: int = 0, hidden: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(nodes + inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))

    def forward(self, states: Tensor) -> Tensor:
        return self.layers(states)


class Causal(nn.Module):
    """The mean of this step and the one before, read linearly."""

    def __init__(self, nodes: int, outputs: int) -> None:
        super().__init__()
        self.read = nn.Linear(nodes, outputs)

    def forward(self, states: Tensor) -> Tensor:
        y = self.read(states)
        return (y + nn.functional.pad(y, (0, 0, 1, 0))[:, :-1]) / 2


class Branching(Net):
    """What torch.export refuses."""

    def forward(self, states: Tensor) -> Tensor:
        y = self.layers(states)
        if y.sum() > 0:
            return y * 1.0
        return y


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    assert outputs.ndim == 2
    assert not targets.isnan().any()
    return nn.functional.huber_loss(outputs, targets)


class TrialsConfig(TaskConfig):
    """Trials of three frequencies and unequal length."""

    kind: Literal["trials_of_a_test"] = "trials_of_a_test"
    at_end: bool = False
    changes: bool = False

    def build(self) -> Trials:
        return Trials(self)


class Trials(Task):
    score = "error_rate"

    def __init__(self, config: TrialsConfig) -> None:
        self.train, self.test = (_trials(config, seed, count) for seed, count in ((0, 45), (1, 30)))

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        del scale
        outputs, split = checked_outputs(outputs, self.test), self.test
        rows = np.arange(len(outputs))
        answers = outputs[rows, split.ends] if split.at_end else outputs.sum(axis=1)
        labels = split.targets[rows, split.ends].argmax(axis=1)
        return Evaluation({"error_rate": float((answers.argmax(axis=1) != labels).mean())})


def _trials(config: TrialsConfig, seed: int, count: int) -> Split:
    random = np.random.default_rng(seed)
    lengths, labels, steps = random.integers(8, 15, count), np.arange(count) % 3, np.arange(15)
    phase = steps * (0.3 + 0.4 * labels[:, None])
    inputs = np.stack([np.sin(phase), np.cos(phase)], axis=2).astype(np.float32)
    inputs += 0.1 * random.standard_normal(inputs.shape).astype(np.float32)
    targets = np.repeat(np.eye(3, dtype=np.float32)[labels][:, None], 15, axis=1)
    if config.changes:
        targets[4, 2] = targets[5, 2]
    padding = steps >= lengths[:, None]
    inputs[padding] = targets[padding] = 0
    return Split(inputs, targets, lengths=lengths, at_end=config.at_end)
