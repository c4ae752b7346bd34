"""Training on examples: data sets with an index, and batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier, TrainedCandidate
from reservoir_hw.readout.training import Progress, TrainingOptions, train
from reservoir_hw.readout.training.documents import by_length


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


class Seen(nn.Module):
    """Keeps what its loss was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.batches: list[tuple[Tensor, ...]] = []

    def loss(self, *batch: Tensor) -> Tensor:
        self.batches.append(batch)
        return (self.weight - batch[1].float()).square().mean()


def classifier(seed: int = 0) -> SequenceClassifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SequenceClassifier(GatedRecurrence(TrainedCandidate(3, 5)), 2)


def options(**changes: Any) -> TrainingOptions:
    settings: dict[str, Any] = {"epochs": 6, "batch": 8, "learning_rate": 3e-2, "accelerator": "cpu"}
    return TrainingOptions(**{**settings, "evaluation_steps": 10, "checkpoint_steps": 4, **changes})


def weights(model: nn.Module) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in model.state_dict().values()]


def test_batches_of_like_length_hold_every_example_once_in_an_epoch() -> None:
    lengths = np.array([len(one) for one in Ups(1003).series])
    order = by_length(lengths, 8, 0)
    for epoch in (0, 1, 2):
        assert sorted(order(epoch * 1003, (epoch + 1) * 1003)) == list(range(1003))
    assert not np.array_equal(order(0, 1003), order(1003, 2006))
    spans = [np.ptp(lengths[order(first, first + 8)]) for first in range(0, 3000, 8)]
    # All but those at the turns of the epochs, and between what is sorted together.
    assert np.mean(np.array(spans) <= 1) > 0.95
    # Whoever asks, and wherever he begins.
    again = by_length(lengths, 8, 0)
    assert np.array_equal(again(2500, 2600), order(2500, 2600))
    assert np.array_equal(again(3, 40), order(0, 40)[3:])
    # Batches do not come by length.
    starts = lengths[order(0, 800)][::8]
    assert abs(np.corrcoef(starts, np.arange(100))[0, 1]) < 0.5


def test_fewer_examples_than_a_batch() -> None:
    order = by_length(np.array([3, 1, 2]), 8, 0)
    assert [sorted(order(3 * epoch, 3 * epoch + 3)) for epoch in range(4)] == [[0, 1, 2]] * 4


def test_what_the_loss_is_given() -> None:
    data, model = Ups(), Seen()
    train(model, data, options=options(steps=5, epochs=None))
    for u, labels, lengths in model.batches:
        assert u.shape[:2] == (8, lengths.max())
        assert labels.dtype == torch.int64
        for row, label, steps in zip(u, labels, lengths, strict=True):
            found = [n for n, one in enumerate(data.series) if np.array_equal(one, row[:steps].numpy())]
            assert [int(data.labels[n]) for n in found] == [int(label)]
            assert not row[steps:].any()
    # Of equal length there are no lengths.
    equal = torch.utils.data.TensorDataset(torch.zeros(20, 4, 3), torch.arange(20))
    model = Seen()
    train(model, equal, options=options(steps=1, epochs=None))
    assert [len(batch) for batch in model.batches] == [2]


def test_learns_and_validates(tmp_path: Path) -> None:
    model = classifier()
    valid = Ups(50, "valid")
    result = train(model, Ups(), valid, options=options(epochs=20, keep="best"), folder=tmp_path)
    assert result.best_loss is not None
    assert result.best_loss < 0.2
    whole = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one) for one in valid.series], batch_first=True)
    lengths = torch.tensor([len(one) for one in valid.series])
    # Batches of 8 and one of 2: a mean over the labels, and not over the batches.
    loss = float(model.loss(whole, torch.from_numpy(valid.labels), lengths).detach())
    assert result.best_loss == pytest.approx(loss, rel=1e-5)


class Death(BaseException):
    """Stands for the end of the process."""


def test_resumes_bit_for_bit(tmp_path: Path) -> None:
    expected = classifier()
    whole = train(expected, Ups(), Ups(50, "valid"), options=options())

    def stop(now: Progress) -> None:
        if now.row.step >= 30:
            raise Death

    with pytest.raises(Death):
        train(classifier(), Ups(), Ups(50, "valid"), options=options(), folder=tmp_path, progress=stop)
    model = classifier(seed=9)
    result = train(model, Ups(), Ups(50, "valid"), options=options(), folder=tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), weights(expected), strict=True))
    assert np.array_equal(result.validation_losses, whole.validation_losses)
    with pytest.raises(ConfigurationError, match="was written with corpus_train"):
        train(classifier(), Ups(91), Ups(50, "valid"), options=options(), folder=tmp_path)


class InBatches:
    """The same examples in batches of six, and a last one of three."""

    def __init__(self, data: Ups) -> None:
        self._data = data

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for first in range(0, len(self._data), 6):
            rows = [self._data[n] for n in range(first, min(first + 6, len(self._data)))]
            u = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one) for one, _ in rows], batch_first=True)
            yield u, torch.tensor([label for _, label in rows]), torch.tensor([len(one) for one, _ in rows])


def test_an_iterable_of_batches_resumes_too(tmp_path: Path) -> None:
    data, valid = InBatches(Ups(81)), InBatches(Ups(33, "valid"))
    expected = classifier()
    whole = train(expected, data, valid, options=options())
    # 14 batches in each of 6 epochs, whatever the options say of their size.
    assert whole.steps == 6 * 14

    def stop(now: Progress) -> None:
        if now.row.step >= 30:
            raise Death

    with pytest.raises(Death):
        train(classifier(), data, valid, options=options(), folder=tmp_path, progress=stop)
    model = classifier(seed=9)
    train(model, data, valid, options=options(), folder=tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(weights(model), weights(expected), strict=True))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (iter([(torch.zeros(2, 3), torch.zeros(2))]), "corpus_train can be read only once"),
        (DataLoader(TensorDataset(torch.zeros(1, 3)), batch_size=2, drop_last=True), "corpus_train is empty"),
        ([("a word", 1)], "example 0 must be a tuple of arrays"),
    ],
)
def test_what_is_refused(data: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        train(Seen(), data, options=options(steps=1, epochs=None))


SCRIPT = """\
import json, os, sys
from test_on_examples import Ups, classifier, options
from reservoir_hw.readout.training import train
model = classifier()
result = train(model, Ups(), Ups(49, "valid"), options=options(log_steps=1), folder=sys.argv[1])
if os.environ["RANK"] == "0":
    losses = {"losses": result.losses.tolist(), "validation": result.validation_losses.tolist()}
    open(sys.argv[1] + "/result.json", "w").write(json.dumps(losses))
"""


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, tmp_path],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path},
    )
    found = json.loads((tmp_path / "result.json").read_text())
    alone = train(classifier(), Ups(), Ups(49, "valid"), options=options(log_steps=1))
    np.testing.assert_allclose(found["losses"], alone.losses, atol=2e-6)
    # 49 make a last batch of one, which two cannot share.
    np.testing.assert_allclose(found["validation"], alone.validation_losses, atol=2e-6)


def test_what_the_caller_brings_is_used() -> None:
    seen: list[tuple[int, bool]] = []
    model = classifier()
    train(
        model,
        Ups(),
        options=options(steps=4, epochs=None, evaluation_steps=None, log_steps=2),
        on_row=lambda step, given, metrics: seen.append((step, given is model)),
    )
    assert seen == [(2, True), (4, True)]
