"""Least mean squares on rows of features: a step down the gradient of each error."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reservoir_hw.readout.linear._decomposition import Array

# Rows that are learned at once: their errors follow from one another by a triangular system of this size.
_ROWS = 48
# Keeps a row of zeros from being divided by its length.
_TINY = np.finfo(np.float64).tiny


class LeastMeanSquares:
    """Weights W (features, outputs) that follow W += rate · φᵀ (y - φ W) at each step (Widrow & Hoff 1960).

    With `normalised`, the rate of each row is divided by ‖φ‖² (Nagumo & Noda 1967): stable for rates below 2. Plain,
    the limit is 2 over the largest eigenvalue of the features' second moments.
    """

    def __init__(self, features: int, outputs: int, *, rate: float, normalised: bool) -> None:
        self.weights = np.zeros((features, outputs))
        self.steps = 0
        self._rate, self._normalised = rate, normalised

    def learn(self, rows: Array, targets: Array) -> Array:
        """Learn from rows (steps, lanes, features) with targets (steps, lanes, outputs).

        Returns what the weights answered before each step was learned. The lanes of a step are answered together, and
        the weights go along the mean of their gradients.
        """
        answers = np.empty(targets.shape)
        size = max(1, _ROWS // rows.shape[1])
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            answers[part] = self._several(rows[part], targets[part])
        self.steps += len(rows)
        return answers

    def memory(self) -> dict[str, Array]:
        """Nothing but the weights."""
        return {}

    def remember(self, memory: Mapping[str, Array]) -> None:
        """Nothing but the weights."""

    def _several(self, rows: Array, targets: Array) -> Array:
        steps, lanes, features = rows.shape
        flat = rows.reshape(-1, features)
        errors = targets.reshape(-1, targets.shape[2]) - flat @ self.weights
        rates = np.full(len(flat), self._rate / lanes)
        if self._normalised:
            rates /= np.maximum(np.einsum("ij,ij->i", flat, flat), _TINY)
        if steps > 1:
            # An error is that of the weights before the block, less what the steps before it have learned.
            step_of = np.arange(len(flat)) // lanes
            learned = (flat @ flat.T) * rates * (step_of[:, None] > step_of)
            try:
                errors = np.linalg.solve(np.eye(len(flat)) + learned, errors)
            except np.linalg.LinAlgError:
                # With ones in its diagonal and nothing above, the matrix is singular only where numbers overflow.
                errors = np.full_like(errors, np.nan)
        self.weights += (flat * rates[:, None]).T @ errors
        return targets - errors.reshape(targets.shape)
