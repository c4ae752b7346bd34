from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reservoir_hw.core.errors import ConfigurationError, NotOpen, ShapeError
from reservoir_hw.readout.baselines import NGram, NGramBaseline

WRONG: list[Any] = [1, 4, "2"]


def paper_probability(train: np.ndarray, context: list[int], word: int, size: int) -> float:
    """The formulas of section 3.1, word for word: `context` is w(t), or w(t - 1) and w(t)."""

    def count(last: int) -> int:
        wanted = [*context, last]
        return sum(
            list(sequence[start : start + len(wanted)]) == wanted
            for sequence in train
            for start in range(len(sequence) - len(wanted) + 1)
        )

    return (1 + count(word)) / sum(1 + count(other) for other in range(size))


@settings(max_examples=20, deadline=None)
@given(
    train=arrays(np.int64, (2, 15), elements=st.integers(0, 3)),
    test=arrays(np.int64, (3, 6), elements=st.integers(0, 3)),
    order=st.sampled_from([2, 3]),
)
def test_formulas_of_the_paper(train: np.ndarray, test: np.ndarray, order: Any) -> None:
    found = NGram(order).fit(train, 4).predict(test)
    assert found.shape == (3, 6, 4)
    np.testing.assert_allclose(found.sum(axis=-1), 1)
    for batch, sequence in enumerate(test):
        for step in range(6):
            context = list(sequence[max(0, step - order + 2) : step + 1])
            expected = [paper_probability(train, context, word, 4) for word in range(4)]
            np.testing.assert_allclose(found[batch, step], expected)


def test_smoothing() -> None:
    predicted = NGram(2, smoothing=0.5).fit(np.array([[0, 1, 0, 1]]), 2).predict(np.array([[0]]))
    np.testing.assert_allclose(predicted[0, 0], [0.5 / 3, 2.5 / 3])
    # A context that was never seen.
    unseen = NGram(3).fit(np.array([[0, 1, 0, 1]]), 3).predict(np.array([[2, 2]]))
    np.testing.assert_allclose(unseen, 1 / 3)
    assert NGram(3).fit(np.array([[0]]), 2).predict(np.array([[1]])).shape == (1, 1, 2)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        *((partial(NGram, order), ConfigurationError, "order is") for order in WRONG),
        (lambda: NGram(2, 0.0), ConfigurationError, "NGram: smoothing = .*: input should be greater than 0"),
        (lambda: NGram(2, float("nan")), ConfigurationError, "smoothing = .*: input should be a finite number"),
        (lambda: NGram(2).predict(np.array([[0]])), NotOpen, "before fit"),
        (lambda: NGram(2).fit(np.array([0, 1, 2]), 3), ShapeError, r"shape \(3,\)"),
        (lambda: NGram(2).fit(np.array([[0, 2]]), 2), ConfigurationError, "outside a vocabulary of 2"),
        (lambda: NGram(2).fit(np.array([[0.0, 1.0]]), 2), ConfigurationError, "token numbers are integers"),
        (
            lambda: NGram(2).fit(np.array([[0, 1]]), 2).predict(np.array([[-1]])),
            ConfigurationError,
            "a vocabulary of 2",
        ),
    ],
)
def test_refused(use: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


def test_baseline_is_the_model_on_splits() -> None:
    symbols = np.array([[0, 1, 2, 0, 1]])
    onehot = np.eye(3)[symbols]
    baseline = NGramBaseline(3).fit(onehot, onehot, symbols)
    assert baseline.scale == "probabilities"
    expected = NGram(3).fit(symbols, 3).predict(symbols)
    np.testing.assert_array_equal(baseline.predict(onehot, symbols), expected)
    with pytest.raises(ConfigurationError, match="this task has none"):
        baseline.predict(onehot, None)
