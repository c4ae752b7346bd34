"""Orthonormal directions of the states, found in passes of bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from reservoir_hw.core.errors import ShapeError
from reservoir_hw.measures._arrays import moving_nodes
from reservoir_hw.measures._blocks import Rows

# Singular values below this, relative to the largest, are lost in the rounding of a Gram matrix.
_HIDDEN = 1e-8


class StateBasis:
    """Orthonormal combinations of the states: over the whole recording, QᵀQ = 1 for Q = `centred(states)` @ `weights`.

    A Gram matrix squares the singular values, so rounding hides those below a hundred-millionth of the largest. It is
    taken twice, the second time of the directions of the first (as in Cholesky QR2; Yamamoto et al. 2015), which
    brings them back, and is still several times quicker than an orthogonal factorisation.

    Nodes are scaled to unit variance first. A direction counts in `rank` if its singular value is above `tolerance`
    times the largest; by default that is the number of nodes times the precision in which the states were recorded.
    `weights` is (nodes, rank); `leverage` (rows,) is |Q_t|² of each row.

    Raises `InputRangeError` if no node moves, `ShapeError` if there are too few rows for the number of nodes.
    """

    def __init__(self, recording: Rows, tolerance: float | None = None) -> None:
        nodes, rows = recording.nodes, recording.rows
        if rows <= 2 * nodes:
            raise ShapeError(
                f"{rows} steps are left for {nodes} nodes; a capacity needs more than twice as many steps as nodes. "
                "Record more steps, or give fewer nodes, or principal components of them"
            )
        self._mean = recording.mean()
        gram = _gram(self.centred(block.states) for block in recording.blocks())
        scale = np.sqrt(gram.diagonal())
        moving = moving_nodes(self._mean, scale / rows**0.5)
        scaling = np.divide(1.0, scale, out=np.zeros(nodes), where=moving)
        lengths, directions = _axes(gram * scaling[:, None] * scaling, _HIDDEN)
        coarse = scaling[:, None] * directions / lengths
        # These are nearly orthonormal already, except for directions that were hidden.
        rest, turn = _axes(_gram(self.centred(block.states) @ coarse for block in recording.blocks()), _HIDDEN)
        left, singular, _ = np.linalg.svd((turn * rest).T * lengths)
        least = nodes * recording.precision if tolerance is None else tolerance
        self.rank = int(np.count_nonzero(singular > least * singular[0]))
        self.weights = coarse @ (turn / rest) @ left[:, : self.rank]
        self.leverage = np.empty(rows)
        for block in recording.blocks():
            self.leverage[block.rows] = ((self.centred(block.states) @ self.weights) ** 2).sum(axis=1)

    def centred(self, states: np.ndarray) -> np.ndarray:
        """States (rows, nodes) less their mean over the recording."""
        return states - self._mean


def _gram(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of the products of (rows, columns) with themselves, (columns, columns)."""
    total = 0.0
    for piece in pieces:
        total = total + piece.T @ piece
    return np.asarray(total)


def _axes(gram: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Singular values, at least `least` times the largest, and right singular vectors of what `gram` is of."""
    squares, vectors = np.linalg.eigh(gram)
    return np.sqrt(np.maximum(squares, squares[-1] * least**2)), vectors
