"""Training on documents of unequal length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from reservoir_hw.core.documents import Documents
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.readout.baselines.recurrent import RecurrentLM
from reservoir_hw.readout.training import TrainingOptions, train
from reservoir_hw.readout.training.documents import DocumentRows, by_length, training_rows_of

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
    rows = DocumentRows(documents, by_length(documents.lengths, 8, 1), vocabulary=VOCABULARY, name="texts")
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


def test_tokens_of_rows_are_what_is_read() -> None:
    documents = Documents.of(texts(9))
    rows = training_rows_of(documents, options(), VOCABULARY)
    for first, stop in ((0, 4), (4, 8), (0, 9), (0, 30), (7, 12)):
        counted = sum(int((rows.get(row, row + 1, torch.device("cpu"))[1] >= 0).sum()) for row in range(first, stop))
        assert rows.tokens(first, stop) == counted


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    documents, held_out = texts(21), texts(6, seed=1)
    whole = model()
    settings = options(evaluation_steps=4)
    result = train(whole, documents, held_out, options=settings, folder=tmp_path / "whole")
    assert result.validation_losses.shape == (3, 2)

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    part = model()
    with pytest.raises(KeyboardInterrupt):
        train(
            part, documents, held_out, options=options(evaluation_steps=4, log_steps=5, checkpoint_steps=1),
            folder=tmp_path / "part", progress=stop,
        )  # fmt: skip
    assert train(part, documents, held_out, options=settings, folder=tmp_path / "part").steps == 12
    for own, other in zip(part.parameters(), whole.parameters(), strict=True):
        assert torch.equal(own, other)
    with pytest.raises(ConfigurationError, match="corpus_train"):
        train(part, documents[1:], held_out, options=settings, folder=tmp_path / "part")


def test_what_does_not_fit() -> None:
    documents = texts(5)
    with pytest.raises(ConfigurationError, match=r"a document of 14 tokens; with context 11 .* set context to 13"):
        train(model(), [*documents, np.zeros(14, int)], options=options())
    with pytest.raises(ConfigurationError, match="stride is 2, but documents are read whole"):
        train(model(), documents, options=options(stride=2))
    with pytest.raises(ConfigurationError, match="a document of 1 tokens: a prediction needs two"):
        train(model(), [*documents, np.zeros(1, int)], options=options())
    with pytest.raises(ShapeError, match="document 1 of corpus_train"):
        train(model(), [documents[0], np.zeros(3)], options=options())
    with pytest.raises(InputRangeError, match=r"corpus_train has token 9 at position 2 of document 0"):
        train(model(), [np.array([0, 1, 9])], options=options(batch=1))
