"""The spectral radius of a recurrent matrix, and the factor that brings it to another one.

The factor is rounded and kept beside the drawn numbers, so that another BLAS can never change a weight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks.random_matrices import Matrix, scipy_sparse

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


def block_power_radius(W: Matrix, *, width: int = 8, settle: int = 50, measure: int = 100) -> float:
    """Spectral radius from the growth of a block of `width` vectors under repeated multiplication by W.

    The mean growth per multiplication over `measure` of them, after `settle`, tends to the radius (Gelfand's
    formula without the transient). Within about 1 %, whatever the spectrum: eigenvalues crowd at the
    rim of a random matrix's spectrum, so that single ones cannot be told apart in reasonable time.
    """
    block = np.random.default_rng(0).random((W.shape[0], width)) - 0.5
    growth = 0.0
    for step in range(settle + measure):
        block = W @ block
        norm = float(np.linalg.norm(block))
        if norm == 0.0:
            return 0.0
        block /= norm
        if step >= settle:
            growth += float(np.log(norm))
    return float(np.exp(growth / measure))


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
