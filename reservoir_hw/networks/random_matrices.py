"""Random matrices: how links and values are drawn, and the storage that suits their number."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.validation import number_in

Distribution = Literal["uniform", "normal", "bernoulli"]
FloatArray: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = NDArray[np.int64]
# FloatArray or csr_array: scipy has no type information that would bear the union.
Matrix: TypeAlias = Any


def scipy_sparse() -> Any:
    """`scipy.sparse` with its `linalg`. Raises `MissingExtra` where scipy is not installed."""
    with extra("sim", "a random network needs scipy"):
        import scipy.sparse.csgraph
        import scipy.sparse.linalg
    return scipy.sparse


def dense_is_faster(nodes: int, nonzeros: int) -> bool:
    """Whether a recurrent matrix of that many nonzeros is better stored dense than as CSR.

    Measured on the time loop of `esn/cpu_loop.py`, one sequence: a streamed dense weight costs a tenth to an eighth
    of a gathered one while the matrix stays in a core's cache, about a fifth beyond it.
    """
    return nonzeros >= (0.1 if nodes <= 500 else 0.2) * nodes * nodes


class Entries(NamedTuple):
    """Which entries of a random matrix are not zero, and from which distribution they come."""

    distribution: Distribution
    probability: float
    """of each entry; 1 is a full matrix"""
    per_row: int | None = None
    """exact number in each row, instead of a probability"""


def draw_matrix(
    shape: tuple[int, int], links: np.random.Generator, values: np.random.Generator, entries: Entries
) -> Matrix:
    """A random matrix, dense or CSR; `links` is the stream of the positions, `values` that of the values."""
    if entries.per_row is None and entries.probability == 1.0:
        return draw_values(values, shape[0] * shape[1], entries.distribution).reshape(shape)
    positions = draw_links(shape, links, entries)
    return matrix_at(shape, positions, draw_values(values, len(positions), entries.distribution))


def draw_links(shape: tuple[int, int], links: np.random.Generator, entries: Entries) -> Positions:
    """Rising positions in the flattened matrix."""
    rows, columns = shape
    _, probability, per_row = entries
    if per_row is None and probability == 1.0:
        return np.arange(rows * columns)
    counts = links.binomial(columns, probability, size=rows) if per_row is None else np.full(rows, per_row)
    chosen = [
        links.choice(columns, count, replace=False, shuffle=False) if count else np.empty(0, np.int64)
        for count in counts.tolist()
    ]
    flat = np.concatenate(chosen) + np.repeat(np.arange(rows) * columns, counts)
    flat.sort()
    return flat


def matrix_at(shape: tuple[int, int], positions: Positions, values: FloatArray) -> Matrix:
    """The matrix with those values at those rising positions, in the storage that the time loop is faster with."""
    rows, columns = shape
    if dense_is_faster(rows, len(positions)):
        dense = np.zeros(rows * columns)
        dense[positions] = values
        return dense.reshape(shape)
    indptr = np.searchsorted(positions, np.arange(rows + 1) * columns)
    return scipy_sparse().csr_array((values, positions % max(columns, 1), indptr), shape=shape)


def draw_values(rng: np.random.Generator, count: int, distribution: Distribution) -> FloatArray:
    """So many numbers: uniform on -1..1, normal with unit variance, or a random sign."""
    if distribution == "uniform":
        return 2.0 * rng.random(count) - 1.0
    if distribution == "normal":
        return rng.standard_normal(count)
    if distribution == "bernoulli":
        return rng.integers(0, 2, count) * np.float64(2.0) - 1.0
    raise ConfigurationError(
        f"unknown distribution {distribution!r}: choose one of {', '.join(get_args(Distribution))}"
    )


def draw_leak(leak: Any, nodes: int, rng: np.random.Generator) -> float | FloatArray:
    """One rate as it is, or a rate for each node, uniform in the range (lowest, highest); all within 0..1."""
    if not isinstance(leak, tuple | list):
        return number_in("leak", leak, 0.0, 1.0)
    if len(leak) != 2:
        raise ConfigurationError(f"leak must be one rate or (lowest, highest), not {leak!r}")
    low, high = (number_in("leak", rate, 0.0, 1.0) for rate in leak)
    if low > high:
        raise ConfigurationError(f"the leak range must rise, it is ({low:g}, {high:g})")
    return low + (high - low) * rng.random(nodes)
