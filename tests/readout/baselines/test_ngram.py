from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tokenizer import Documents
from reservoir_hw.readout.baselines.ngram import BigramConfig, NGram
from reservoir_hw.tasks.narma import NarmaConfig


def counted(train: np.ndarray, vocabulary: int, order: Any, smoothing: float = 1.0) -> NGram:
    return NGram(Documents.of(list(train)), vocabulary, order, smoothing)


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


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    train=arrays(np.int64, (2, 15), elements=st.integers(0, 3)),
    test=arrays(np.int64, (3, 6), elements=st.integers(0, 3)),
    order=st.sampled_from([2, 3]),
)
def test_formulas_of_the_paper(train: np.ndarray, test: np.ndarray, order: Any) -> None:
    found = counted(train, 4, order).probabilities(test)
    assert found.shape == (3, 6, 4)
    np.testing.assert_allclose(found.sum(axis=-1), 1)
    for batch, sequence in enumerate(test):
        for step in range(6):
            context = list(sequence[max(0, step - order + 2) : step + 1])
            expected = [paper_probability(train, context, word, 4) for word in range(4)]
            np.testing.assert_allclose(found[batch, step], expected)


def test_smoothing() -> None:
    predicted = counted(np.array([[0, 1, 0, 1]]), 2, 2, 0.5).probabilities(np.array([[0]]))
    np.testing.assert_allclose(predicted[0, 0], [0.5 / 3, 2.5 / 3])
    # A context that was never seen.
    unseen = counted(np.array([[0, 1, 0, 1]]), 3, 3).probabilities(np.array([[2, 2]]))
    np.testing.assert_allclose(unseen, 1 / 3)
    assert counted(np.array([[0]]), 2, 3).probabilities(np.array([[1]])).shape == (1, 1, 2)


def test_a_task_without_symbols_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="this task has none"):
        BigramConfig(kind="bigram").check_task(NarmaConfig(kind="narma").build())
