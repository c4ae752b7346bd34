"""The rules of the online readouts on rows of features: recursive least squares, and least mean squares."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from reservoir_hw.readout.linear._ridge_solver import Array

# Rows that are learned at once: enough for matrix products, few enough for their triangular systems.
_ROWS = 48


class RecursiveLeastSquares:
    """Weights W (features, outputs) that minimise Σ_i λ^(n-i) ‖y_i - φ_i W‖² + penalties after any step n.

    With λ = `forgetting` = 1 the penalty is `alpha` ‖W‖²: ridge regression on all rows. With λ < 1 the penalty would
    be forgotten like the rows, and the weights along a direction that nothing excites would become uncertain without
    bound ("blow-up"). So the penalty of each weight is renewed once in 1 / (1 - λ) steps, which keeps it between
    alpha / e and alpha. With `free`, the last feature is a constant 1 whose weight has no penalty.

    What is kept is S with P = S Sᵀ, P being the covariance of the weights in units of a row's noise. Unlike P itself,
    S Sᵀ cannot become indefinite by rounding (Potter 1963; for several rows Andrews 1968; both in Bierman 1977,
    Factorization Methods for Discrete Sequential Estimation).
    """

    def __init__(self, features: int, outputs: int, *, alpha: float, forgetting: float, free: bool) -> None:
        self.weights = np.zeros((features, outputs))
        self.root = np.eye(features) / math.sqrt(alpha)
        self.steps = 0
        self._forgetting, self._free = forgetting, free
        self._penalised = features - free
        self._renewals_per_step = self._penalised * (1.0 - forgetting)
        lost = 0.0 if forgetting == 1 else -math.expm1(math.log(forgetting) / (1.0 - forgetting))
        self._renewal = math.sqrt(alpha * lost)

    def learn(self, rows: Array, targets: Array) -> Array:
        """Learn from rows (steps, lanes, features) with targets (steps, lanes, outputs).

        Returns what the weights answered before each step was learned. The lanes of a step are answered together and
        weigh the same: forgetting counts steps.
        """
        answers = np.zeros(targets.shape)
        first = 0
        if self.steps == 0 and len(rows):
            self._start(rows[0], targets[0])
            first = 1
        lanes = rows.shape[1]
        size = max(1, int(_ROWS / (lanes + self._renewals_per_step)))
        for start in range(first, len(rows), size):
            part = slice(start, min(start + size, len(rows)))
            steps = part.stop - part.start
            learn = self._several if steps > 1 else self._one
            answers[part] = learn(rows[part], targets[part])
            self.steps += steps
        return answers

    def memory(self) -> dict[str, Array]:
        """The weights, and the square root of the covariance."""
        return {"weights": self.weights, "root": self.root}

    def _start(self, rows: Array, targets: Array) -> None:
        """The first step: a free weight is undetermined before its first row, and determined by it."""
        if self._free:
            # The limit of an ever larger variance of the last weight before the row: it is y - φ W, φ the others.
            self.weights[-1] = targets[0]
            self.root[-1] = -rows[0, :-1] @ self.root[:-1]
            self.root[-1, -1] = 1.0
            rows, targets = rows[1:], targets[1:]
        self._absorb_all(rows, targets)
        self.steps = 1

    def _one(self, rows: Array, targets: Array) -> Array:
        """One step, all its lanes."""
        answers = rows @ self.weights
        self.root *= self._forgetting**-0.5
        self._absorb_all(rows[0], targets[0])
        renewed = self._due(1)[0]
        if renewed:
            self._absorb_all(self._renewals(renewed), np.zeros((renewed, targets.shape[2])))
        return answers

    def _several(self, rows: Array, targets: Array) -> Array:
        """As many calls of `_one`, in one."""
        steps, lanes, features = rows.shape
        due = self._due(steps)
        begins = np.arange(steps) * lanes + np.cumsum(due) - due
        given = begins[:, None] + np.arange(lanes)
        step_of = np.repeat(np.arange(steps), lanes + due)
        everything = np.zeros((len(step_of), features))
        wanted = np.zeros((len(step_of), targets.shape[2]))
        everything[given], wanted[given] = rows, targets
        if due.any():
            renewed = np.ones(len(step_of), dtype=bool)
            renewed[given] = False
            everything[renewed] = self._renewals(int(due.sum()))
        noise = self._forgetting ** ((step_of + 1) / 2)
        factor, scaled = self._absorb(everything, wanted, noise)
        self.root *= self._forgetting ** (-steps / 2)
        return targets - factor[given[:, :, None], given[:, None, :]] @ scaled[given]

    def _due(self, steps: int) -> npt.NDArray[np.intp]:
        """How many penalties are renewed after each of the next steps, however these are grouped."""
        return np.diff(np.floor((self.steps - 1 + np.arange(steps + 1)) * self._renewals_per_step).astype(np.intp))

    def _renewals(self, number: int) -> Array:
        """Rows that, with targets 0, renew the penalties whose turn it is."""
        first = math.floor((self.steps - 1) * self._renewals_per_step)
        rows = np.zeros((number, len(self.root)))
        rows[np.arange(number), (first + np.arange(number)) % self._penalised] = self._renewal
        return rows

    def _absorb_all(self, rows: Array, targets: Array) -> None:
        if len(rows) == 1:
            self._absorb_one(rows[0], targets[0])
            return
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            self._absorb(rows[part], targets[part], np.ones(len(rows[part])))

    def _absorb_one(self, row: Array, target: Array) -> None:
        """One row (features,) of noise 1."""
        along = row @ self.root
        gain = self.root @ along
        variance = 1.0 + along @ along
        self.weights += np.outer(gain, (target - row @ self.weights) / variance)
        self.root -= np.outer(gain, along / (variance + math.sqrt(variance)))

    def _absorb(self, rows: Array, targets: Array, noise: Array) -> tuple[npt.NDArray, npt.NDArray]:
        """Rows (n, features) with standard deviations (n,) of their noise, in their order.

        Returns C, lower triangular with C Cᵀ the covariance of the answers, and C⁻¹ (targets - answers), both about
        the weights before.
        """
        number = len(rows)
        # [[noise, Φ S], [0, S]] Q = [[C, 0], [K, S']] for an orthogonal Q = 1 - Y T Yᵀ made of n reflections: no square
        # is ever taken, which would cost half of the digits where the first rows meet a small alpha.
        reflections, scales = np.linalg.qr(np.concatenate([np.diag(noise), (rows @ self.root).T]), mode="raw")
        factor = np.tril(reflections[:, :number])
        vectors = np.triu(reflections, 1)
        vectors[np.arange(number), np.arange(number)] = 1.0
        products = np.triu(vectors @ vectors.T, 1)
        reflected = (self.root @ vectors[:, number:].T) * scales
        reflected = reflected @ np.linalg.inv(np.eye(number) + products * scales)
        scaled = np.linalg.solve(factor, targets - rows @ self.weights)
        self.weights -= reflected @ (vectors[:, :number] @ scaled)
        self.root -= reflected @ vectors[:, number:]
        return factor, scaled


# ---- Least mean squares on rows of features: a step down the gradient of each error.


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
        """The weights."""
        return {"weights": self.weights}

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
