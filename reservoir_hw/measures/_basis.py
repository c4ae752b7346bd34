"""Orthonormal directions of the states, found in passes of bounded memory."""

from __future__ import annotations

import numpy as np

from reservoir_hw.errors import ShapeError
from reservoir_hw.measures._arrays import moving_nodes
from reservoir_hw.measures._recording import Rows


class StateBasis:
    """Orthonormal combinations of the states: over the whole recording, QᵀQ = 1 for Q = `centred(states)` @ `weights`.

    The triangle R of a QR factorisation is gathered block by block (Golub & Van Loan 2013, section 5.2), and its
    singular value decomposition gives the directions. Unlike with a Gram matrix, small singular values survive.

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
        triangle = np.empty((0, nodes))
        for block in recording.blocks():
            triangle = np.linalg.qr(np.concatenate([triangle, self.centred(block.states)]), mode="r")
        scale = np.linalg.norm(triangle, axis=0)
        moving = moving_nodes(self._mean, scale / rows**0.5)
        scaling = np.divide(1.0, scale, out=np.zeros(nodes), where=moving)
        _, singular, directions = np.linalg.svd(triangle * scaling)
        least = nodes * recording.precision if tolerance is None else tolerance
        self.rank = int(np.count_nonzero(singular > least * singular[0]))
        self.weights = scaling[:, None] * directions[: self.rank].T / singular[: self.rank]
        self.leverage = np.empty(rows)
        for block in recording.blocks():
            self.leverage[block.rows] = ((self.centred(block.states) @ self.weights) ** 2).sum(axis=1)

    def centred(self, states: np.ndarray) -> np.ndarray:
        """States (rows, nodes) less their mean over the recording."""
        return states - self._mean
