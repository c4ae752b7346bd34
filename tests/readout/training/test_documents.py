"""Training on documents of unequal length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reservoir_hw.core.tokenizer import Documents
from reservoir_hw.readout.baselines.recurrent import RecurrentLM
from reservoir_hw.readout.training import TrainingOptions, train
from reservoir_hw.readout.training.examples import Rows, WholeDocuments, by_length

VOCABULARY = 7


def texts(count: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(VOCABULARY, size=random.integers(2, 12)) for _ in range(count)]


def model() -> RecurrentLM:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return RecurrentLM(VOCABULARY, cell="gru", hidden=5)


def options(**changes: object) -> TrainingOptions:
    return TrainingOptions(**{"context": 11, "batch": 4, "steps": 12, "learning_rate": 1e-2, **changes})


def test_tokens_are_those_of_the_rows() -> None:
    """However many epochs they span, and wherever they begin."""
    documents = Documents.of(texts(20))
    examples = WholeDocuments(documents, vocabulary=VOCABULARY, name="texts")
    rows = Rows(examples, examples.order(options(batch=8, seed=1)))
    for first, stop in ((0, 32), (8, 16), (32, 64), (5, 61), (20, 60), (13, 13)):
        _, targets = rows.get(first, stop, torch.device("cpu"))
        assert rows.tokens(first, stop) == int((targets >= 0).sum())


def test_the_gradient_is_that_of_each_document_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = texts(8)
    predictions = sum(len(one) - 1 for one in documents)
    alone = model().double()
    for one in documents:
        tokens = torch.from_numpy(one)[None]
        (alone.loss(tokens[:, :-1], tokens[:, 1:]) * (len(one) - 1) / predictions).backward()
    wanted = [parameter.grad for parameter in alone.parameters()]
    trained = model().double()
    found: list[torch.Tensor] = []

    def keep(self: object) -> None:
        found.extend(p.grad.clone() for p in trained.parameters() if p.grad is not None)

    monkeypatch.setattr(torch.optim.AdamW, "step", keep)
    train(trained, documents, options=options(batch=2, accumulate=4, steps=1))
    for own, other in zip(found, wanted, strict=True):
        assert other is not None
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-15)


def test_batches_have_documents_of_like_length() -> None:
    lengths = np.random.default_rng(1).integers(2, 200, size=1000)
    order = by_length(lengths, 8, 0)
    epochs = [order(epoch * 1000, (epoch + 1) * 1000) for epoch in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(1000))
    assert not np.array_equal(epochs[0], epochs[1])
    rows = np.concatenate(epochs)
    spread = [np.ptp(lengths[rows[first : first + 8]]) for first in range(0, 3000, 8)]
    assert np.median(spread) < 10
    np.testing.assert_array_equal(by_length(lengths, 8, 0)(1500, 1700), rows[1500:1700])
