"""Random matrices: how links and values are drawn, the storage that suits their number, and their spectral radius."""

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


# ---- The spectral radius of a recurrent matrix, and the factor that brings it to another one.
#
# The factor is rounded and kept beside the drawn numbers, so that another BLAS can never change a weight.


# Below this many nodes LAPACK's full spectrum is the quicker and the safer way to a spectral radius.
_DENSE_SPECTRUM_BELOW = 1000
# Of the Krylov residual; the eigenvalue itself comes out within about 0.02 %.
_ARPACK_TOLERANCE = 1e-2
# Random networks converge within ten restarts; eigenvalues on one circle do not within thousands.
_ARPACK_RESTARTS = 50
# Up to this many nodes, LAPACK takes seconds if ARPACK has failed.
_DENSE_SPECTRUM_UP_TO = 3000


def scale_to(target: float, radius: float) -> float:
    """The factor that brings a matrix of this spectral radius to `target`, at least 0, in nine digits."""
    # Finer ones are rounding of the eigenvalue solver and would differ between machines.
    return float(f"{target / radius:.8e}")


def spectral_radius(W: Matrix, *, by_graph: bool = True) -> float:
    """Largest absolute eigenvalue of a square matrix, dense or scipy sparse, within about 0.02 %.

    LAPACK below 1000 nodes. Above it the product of the weights around each loop where no two loops meet, as in a
    ring, else ARPACK (Lehoucq, Sorensen & Yang 1998) with a wide Krylov space and a fixed start; where that does not
    converge, LAPACK up to 3000 nodes and `block_power_radius` (within about 1 %) beyond. 65,536 nodes with 32 links
    each take seconds.

    Without `by_graph` nobody looks at the links: LAPACK takes 1000 nodes too, and loops are left to ARPACK. The
    published language-model networks are drawn so, and the last digit of their weights depends on it. Up to 1000
    dense nodes then need no scipy.

    Raises `ConfigurationError` for a zero or nilpotent matrix: scaling cannot give it a radius.
    """
    nodes = W.shape[0]
    radius: float | None = None
    if by_graph:
        links = scipy_sparse().csr_array(W)
        parts, part = scipy_sparse().csgraph.connected_components(links, connection="strong")
        # Without a closed loop, and exactly then, every such matrix is nilpotent. Eigenvalue solvers cannot tell:
        # rounding gives a permuted delay line of 100 nodes radii near 0.7.
        if parts == nodes and not links.diagonal().any():
            raise ConfigurationError(
                "the recurrent matrix has the spectral radius 0 (no link, or no closed loop among its links): "
                "no scaling can change that; use more links or another seed, or leave spectral_radius out"
            )
        if nodes >= _DENSE_SPECTRUM_BELOW:
            radius = _loops_radius(links, parts, part)
        del links
    if radius is None:
        small = nodes < _DENSE_SPECTRUM_BELOW + (not by_graph)
        radius = _dense_radius(W) if small else _krylov_radius(W)
    # Numerically nilpotent: rounding alone gives such a matrix eigenvalues near the root of the precision.
    if not radius > 1e-7 * float(abs(W).max()):
        raise ConfigurationError(
            f"the recurrent matrix is nilpotent to machine precision (spectral radius {radius:.1e}): "
            "no scaling can change that; use more links or another seed, or leave spectral_radius out"
        )
    return radius


def block_power_radius(W: Matrix) -> float:
    """Spectral radius from the growth of a block of eight vectors under repeated multiplication by W.

    The mean growth per multiplication over 100 of them, after the first 50, tends to the radius (Gelfand's
    formula without the transient). Within about 1 %, whatever the spectrum: eigenvalues crowd at the
    rim of a random matrix's spectrum, so that single ones cannot be told apart in reasonable time.
    """
    settle, measured = 50, 100
    block = np.random.default_rng(0).random((W.shape[0], 8)) - 0.5
    growth = 0.0
    for step in range(settle + measured):
        block = W @ block
        norm = float(np.linalg.norm(block))
        if norm == 0.0:
            return 0.0
        block /= norm
        if step >= settle:
            growth += float(np.log(norm))
    return float(np.exp(growth / measured))


def perron_root(W: Matrix) -> float:
    """Spectral radius of a nonnegative matrix whose graph is strongly connected, dense or CSR, to 1e-10.

    Noda 1971: inverse iteration shifted to the largest of (W x)ᵢ / xᵢ, which with the smallest encloses the
    radius (Collatz and Wielandt) and falls to it quadratically, however close the other eigenvalues are. For
    matrices whose factorisation stays sparse, such as a cycle with jumps.
    """
    x = np.ones(W.shape[0])
    last = np.inf
    sparse = scipy_sparse()
    while True:
        # The vector may fade to nothing along a path; there it has no digits left to compare.
        alive = x > 1e-290
        growth = (W @ x)[alive] / x[alive]
        highest = float(growth.max())
        # It falls until rounding stops it.
        if highest - growth.min() <= 1e-10 * highest or highest >= last:
            return highest
        last = highest
        # A little above it: at the radius itself there is nothing to invert.
        x = sparse.linalg.splu(sparse.csc_array(highest * (1 + 1e-13) * sparse.eye_array(W.shape[0]) - W)).solve(x)
        x /= x.max()


def _dense_radius(W: Matrix) -> float:
    return float(np.abs(np.linalg.eigvals(W if isinstance(W, np.ndarray) else W.toarray())).max())


def _krylov_radius(W: Matrix) -> float:
    linalg = scipy_sparse().linalg
    # A start vector of its own keeps ARPACK from drawing one.
    start = np.random.Generator(np.random.PCG64(0)).random(W.shape[0]) - 0.5
    try:
        values = linalg.eigs(
            W, k=1, which="LM", ncv=100, maxiter=_ARPACK_RESTARTS, tol=_ARPACK_TOLERANCE, v0=start,
            return_eigenvectors=False,
        )  # fmt: skip
    except linalg.ArpackError:
        return _dense_radius(W) if W.shape[0] <= _DENSE_SPECTRUM_UP_TO else block_power_radius(W)
    return float(np.abs(values).max())


def _loops_radius(W: Matrix, parts: int, part: NDArray[np.int32]) -> float | None:
    """The spectral radius, exactly, of a matrix whose closed loops share no node; None for any other matrix.

    `part` (nodes,) says in which of so many strongly connected parts a node is.
    """
    if parts == 1 and W.nnz > W.shape[0]:
        return None
    links = scipy_sparse().coo_array(W)
    rows, columns = links.coords
    inside = part[rows] == part[columns]
    if np.bincount(rows[inside], minlength=1).max() > 1:
        return None
    # One link per node: each part is one loop, whose eigenvalues are the roots of the product of its weights.
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.abs(links.data[inside]))
    of = part[rows[inside]]
    sizes = np.bincount(of, minlength=parts)
    means = np.bincount(of, logarithms, minlength=parts)[sizes > 0] / sizes[sizes > 0]
    return float(np.exp(means.max()))
