"""States on disk: the same figures as in memory, and every chunk unpacked about once in a pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from measures.known import random

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.measures import Recorded, StatesOnDisk, drift, effective_dimension, memory_capacity
from reservoir_hw.measures._measured import Rows

CHUNKS = [(7, 30), (3, 100), (20, 1000), (1, 64)]


class Chunked:
    """An array in chunks that counts how often each of them is read."""

    ndim = 3

    def __init__(self, array: np.ndarray, chunks: tuple[int, int]) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype
        self.chunks = (*chunks, array.shape[2])
        self.reads: Counter[tuple[int, int]] = Counter()

    def __getitem__(self, at: tuple[slice, slice]) -> np.ndarray:
        rows, steps = (range(*part.indices(size)) for part, size in zip(at, self.shape[:2], strict=True))
        places = {(row // self.chunks[0], step // self.chunks[1]) for row in rows for step in steps}
        self.reads.update(places)
        return self._array[at]


def recorded(sequences: int = 20, steps: int = 210) -> tuple[np.ndarray, np.ndarray]:
    u = random().uniform(-1, 1, (sequences, steps, 1))
    shifted = [np.roll(u, k, axis=1) for k in range(3)]
    return u, np.concatenate(shifted, axis=2) + 0.1 * random(1).standard_normal((sequences, steps, 3))


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("washout", [0, 35])
def test_every_row_comes_once_where_it_belongs(chunks: tuple[int, int], washout: int) -> None:
    _, x = recorded()
    stored = Chunked(x, chunks)
    rows = Rows(stored, washout)
    found = np.full((rows.rows, 3), np.nan)
    for block in rows.blocks():
        assert np.isnan(found[block.rows]).all()
        found[block.rows] = block.states
        np.testing.assert_array_equal(block.states, x[block.sequence, block.first : block.first + len(block.states)])
    np.testing.assert_array_equal(found, x[:, washout:].reshape(-1, 3))
    assert set(stored.reads.values()) == {1}


@pytest.mark.parametrize("chunks", CHUNKS)
def test_measures_are_those_of_the_array_in_memory(chunks: tuple[int, int]) -> None:
    u, x = recorded()
    stored = Chunked(x, chunks)
    expected = memory_capacity(u, x, max_delay=5), effective_dimension(x, washout=10)
    found = memory_capacity(u, stored, max_delay=5), effective_dimension(stored, washout=10)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.value == pytest.approx(theirs.value, rel=1e-12)
        assert ours.interval.low == pytest.approx(theirs.interval.low, rel=1e-9)
    # A handful of passes, however many sequences share a chunk.
    assert max(stored.reads.values()) <= 9


@pytest.mark.parametrize("chunks", CHUNKS)
def test_repeated_drives_ends_and_long_sequences(chunks: tuple[int, int]) -> None:
    u, x = recorded()
    u[10:, 50:] = u[:1, 50:]
    stored = Chunked(x, chunks)
    source = Recorded((u, stored), (u[:4], x[:4]))
    before = sum(stored.reads.values())
    np.testing.assert_array_equal(source.repeats(), np.concatenate([x[[0]], x[10:], x[[0]]])[:, 50:])
    assert sum(stored.reads.values()) - before <= len(stored.reads)
    assert source.kernel_rank().value == Recorded((u, x)).kernel_rank().value
    stored.reads.clear()
    alone = Recorded((u[:1], stored._array[:1]))
    assert Recorded((u[:9], StatesOnDisk(stored, range(9)))).drift().value == pytest.approx(alone.drift().value)
    assert max(stored.reads.values()) == 1


def test_some_sequences_and_steps(tmp_path: Path) -> None:
    _, x = recorded()
    array: Any = zarr.create_array(str(tmp_path / "x"), data=x, chunks=(8, 50, 3))
    some = StatesOnDisk(array, [1, 2, 9, 17], 160)
    assert np.shape(some) == (4, 160, 3)
    for place, number in enumerate([1, 2, 9, 17]):
        np.testing.assert_array_equal(some[place, 20:1000], x[number, 20:160])
    assert some[3, 160:].shape == (0, 3)
    assert drift(x[1, :160]).value == pytest.approx(Recorded((x[:4, :160, :1], some)).drift().value)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    _, x = recorded()
    array: Any = zarr.create_array(str(tmp_path / "x"), data=x, chunks=(8, 50, 3))
    (tmp_path / "x" / "c" / "1" / "0" / "0").write_bytes(b"no states")
    with pytest.raises(ConfigurationError, match=r"sequences 8 to 15, steps .*Is the file damaged"):
        effective_dimension(StatesOnDisk(array))
