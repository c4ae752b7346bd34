from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reservoir_hw.readout.training import TrainingOptions
from reservoir_hw.readout.training.examples import (
    Windows,
    digest_of,
    drawn,
    of_corpus,
    shuffled,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [shuffled, drawn])
def test_order_depends_on_seed_and_row_alone(make: Any) -> None:
    whole = make(13, 5, "windows")(0, 60)
    again = make(13, 5, "windows")
    # As a resumed training, or one of several processes, would ask.
    pieces = [again(first, stop) for first, stop in [(44, 60), (0, 1), (1, 30), (30, 44)]]
    np.testing.assert_array_equal(np.concatenate([*pieces[1:], pieces[0]]), whole)
    assert not np.array_equal(make(13, 6, "windows")(0, 60), whole)


def test_shuffled_takes_each_once_in_an_epoch() -> None:
    order = shuffled(10, 0, "windows")
    epochs = order(0, 30).reshape(3, 10)
    assert (np.sort(epochs, axis=1) == np.arange(10)).all()
    assert not np.array_equal(epochs[0], epochs[1])


def test_drawn_is_uniform() -> None:
    found = drawn(4, 0, "windows")(0, 40_000)
    assert found.min() == 0
    assert found.max() == 3
    # Four standard deviations of a binomial count.
    np.testing.assert_allclose(np.bincount(found), 10_000, atol=4 * (40_000 * 0.25 * 0.75) ** 0.5)


def test_windows_are_pairs_of_token_and_next() -> None:
    corpus = np.arange(100, 121, dtype=np.uint16)
    windows = Windows(corpus, 5)
    assert len(windows) == 4
    tokens, targets = windows.read(np.array([0, 3]))
    np.testing.assert_array_equal(tokens, [[100, 101, 102, 103, 104], [115, 116, 117, 118, 119]])
    np.testing.assert_array_equal(targets, tokens + 1)
    assert tokens.dtype == targets.dtype == np.int64


def test_random_windows_reach_both_ends() -> None:
    # Köster & Uchida 2026, eq. A20: uniform starts, chunks of T tokens make T - 1 pairs.
    options = TrainingOptions(steps=1, windows="random", context=3, seed=1)
    windows = of_corpus(np.arange(8), options, vocabulary=None, name="the corpus", learned=True)
    tokens, targets = windows.items(windows.order(options)(0, 500), CPU)
    assert set(tokens[:, 0].tolist()) == {0, 1, 2, 3, 4}
    torch.testing.assert_close(targets, tokens + 1)


def test_stride_and_last_target() -> None:
    # Köster & Uchida 2026, section II.F: 32 characters, and the one that follows.
    windows = Windows(np.arange(10), 4, stride=1, predict="last")
    assert len(windows) == 6
    tokens, targets = windows.read(np.arange(6))
    np.testing.assert_array_equal(tokens[:, 0], np.arange(6))
    np.testing.assert_array_equal(targets[:, -1], np.arange(4, 10))
    assert (targets[:, :-1] == -1).all()


def test_evaluation_takes_windows_in_turn() -> None:
    windows = Windows(np.arange(9), 2)
    tokens, _ = windows.items(windows.evaluated(None), CPU)
    np.testing.assert_array_equal(tokens[:, 0], [0, 2, 4, 6])


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_memory_mapped(tmp_path: Path, dtype: Any) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(50, dtype=dtype))
    mapped = Windows(np.load(path, mmap_mode="r"), 7)
    assert isinstance(mapped.corpus, np.memmap)
    np.testing.assert_array_equal(mapped.read(np.array([2]))[0], [np.arange(14, 21)])
    assert digest_of(mapped.corpus) == digest_of(np.arange(50))


def test_another_corpus_has_another_digest() -> None:
    corpus = np.zeros(10_000, np.uint16)
    changed = corpus.copy()
    changed[-1] = 1
    assert len({digest_of(corpus), digest_of(changed), digest_of(corpus[1:])}) == 3
