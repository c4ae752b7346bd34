"""Linear readouts in 8-bit integers: how weights and states are coded, and what the C code computes with them.

States are coded as q = (x - centre) · per_unit, rounded, -127 to 127; weights symmetrically with a scale for each row
(Jacob et al. 2018, eqs. 1 and 7, with zero points of 0). The products are summed exactly in 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reservoir_hw.core.errors import ConfigurationError

LEVELS = 127
# A converter's own integers may be -128.
_LARGEST_PRODUCT = 127 * 128
MOST_FEATURES = (2**31 - 1) // _LARGEST_PRODUCT
SMALLEST_PEAK = 1e-30
"""Below that the rank activations of a low-rank readout count as 0: 127 over them would leave float32."""

_FLOAT32 = np.finfo(np.float32)


@dataclass(frozen=True)
class Coding:
    """q = (x - centre) · per_unit, both float32."""

    centre: np.float32
    per_unit: np.float32

    @classmethod
    def of_range(cls, what: str, low: float, high: float) -> Coding:
        """The coding that puts `low` at -127 and `high` at 127; raises ConfigurationError for an empty range."""
        if not (np.isfinite(low) and np.isfinite(high) and low < high):
            raise ConfigurationError(
                f"the range of the {what} is {low} to {high}, "
                "which 8 bits cannot divide: it must be finite, low before high"
            )
        with np.errstate(over="ignore", divide="ignore"):
            coding = cls(np.float32((low + high) / 2), np.float32(2 * LEVELS / (high - low)))
        if not (np.isfinite(coding.centre) and _FLOAT32.tiny <= coding.per_unit <= _FLOAT32.max):
            raise ConfigurationError(
                f"the range of the {what}, {low} to {high}, cannot be coded in float32: scale them"
            )
        return coding

    @property
    def scale(self) -> float:
        """What one count is worth."""
        return 1 / float(self.per_unit)

    def coded(self, values: npt.ArrayLike) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
        """Values (..., features) as int8, and which of them were saturated or no number."""
        with np.errstate(over="ignore", invalid="ignore"):
            q = (np.asarray(values, dtype=np.float32) - self.centre) * self.per_unit
        low, high = q <= np.float32(-LEVELS - 0.5), q >= np.float32(LEVELS + 0.5)
        outside = low | high | np.isnan(q)
        coded = _rounded(np.where(outside, np.float32(0), q))
        coded[low], coded[high] = -LEVELS, LEVELS
        return coded, outside

    def decoded(self, q: npt.NDArray[np.int8]) -> npt.NDArray[np.float64]:
        """The values that the integers stand for."""
        return q.astype(np.float64) * self.scale + float(self.centre)


@dataclass(frozen=True)
class Int8Matrix:
    """Rows of int8 weights (rows, columns) that are worth `row_scale` (rows,) float32 each."""

    weights: npt.NDArray[np.int8]
    row_scale: npt.NDArray[np.float32]

    @classmethod
    def of(cls, weights: npt.NDArray) -> Int8Matrix:
        """Round (rows, columns); raises ConfigurationError for more columns than 32 bits can sum."""
        columns = weights.shape[1]
        if columns > MOST_FEATURES:
            raise ConfigurationError(
                f"{columns} features are more than a 32-bit sum of 8-bit products can hold for certain "
                f"({MOST_FEATURES}): export with precision='fp32'"
            )
        exact = weights.astype(np.float64)
        row_scale = (np.abs(exact).max(axis=1) / LEVELS).astype(np.float32)
        divisor = np.where(row_scale > 0, row_scale, 1).astype(np.float64)
        counts = np.where(row_scale[:, None] > 0, np.rint(exact / divisor[:, None]), 0)
        return cls(counts.clip(-LEVELS, LEVELS).astype(np.int8), row_scale)

    def sums(self, q: npt.NDArray[np.int8]) -> npt.NDArray[np.float32]:
        """The exact sums of products as float32: (..., columns) -> (..., rows)."""
        # Integers below 2^31 are exact in float64, whose matrix product is the fast one.
        return (q.astype(np.float64) @ self.weights.T.astype(np.float64)).astype(np.int32).astype(np.float32)

    def largest_sum(self) -> float:
        """An upper bound for every sum of a row, times its scale."""
        worst = np.abs(self.weights.astype(np.int64)).sum(axis=1) * 128.0
        return float((worst * self.row_scale.astype(np.float64)).max())


@dataclass(frozen=True)
class Int8Readout:
    """An int8 readout as the C header computes it, step by step in the same precision.

    `first` has the features as columns; `second`, of a low-rank readout, takes what `first` gives, coded by its
    largest entry at each step. `bias` (outputs,) is that at the centre of the features.
    """

    first: Int8Matrix
    second: Int8Matrix | None
    bias: npt.NDArray[np.float32]
    states: Coding
    inputs: Coding | None
    nodes: int

    @classmethod
    def of(
        cls,
        first: npt.NDArray,
        second: npt.NDArray | None,
        bias: npt.NDArray,
        *,
        states: Coding,
        inputs: Coding | None,
        nodes: int,
    ) -> Int8Readout:
        """Quantise `first` (rank or outputs, features) and `second` (outputs, rank) of y = second (first x) + bias.

        Raises ConfigurationError where sums could leave 32 bits or outputs could leave float32.
        """
        scale, centre = np.empty(first.shape[1]), np.empty(first.shape[1])
        for part, coding in ((slice(nodes), states), (slice(nodes, None), inputs or states)):
            scale[part], centre[part] = coding.scale, coding.centre
        at_centre = first.astype(np.float64) @ centre
        offset = bias.astype(np.float64) + (at_centre if second is None else second.astype(np.float64) @ at_centre)
        one = Int8Matrix.of(first.astype(np.float64) * scale)
        two = None if second is None else Int8Matrix.of(second)
        reach = one.largest_sum()
        if two is not None:
            reach = max(reach, reach * two.largest_sum() / LEVELS)
        if not reach + np.abs(offset).max() < _FLOAT32.max:
            raise ConfigurationError(
                f"outputs of this readout could reach {reach:.1e}, more than float32 holds: train it on scaled states"
            )
        return cls(one, two, offset.astype(np.float32), states, inputs, nodes)

    def coded(
        self, states: npt.ArrayLike, inputs: npt.ArrayLike | None = None
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int64]]:
        """Features as int8 (..., features), and how many of them were saturated or no number (...)."""
        parts = [self.states.coded(states)]
        if self.inputs is not None:
            parts.append(self.inputs.coded([] if inputs is None else inputs))
        saturated = sum((outside.sum(axis=-1) for _, outside in parts), start=np.int64(0))
        return np.concatenate([q for q, _ in parts], axis=-1), np.asarray(saturated)

    def predict_q(self, q: npt.NDArray[np.int8]) -> npt.NDArray[np.float32]:
        """Outputs (..., outputs) of coded features (..., features)."""
        middle = self.first.sums(q) * self.first.row_scale
        if self.second is None:
            return middle + self.bias
        peak = np.abs(middle).max(axis=-1, keepdims=True)
        used = peak > np.float32(SMALLEST_PEAK)
        safe = np.where(used, peak, np.float32(1)).astype(np.float32, copy=False)
        coded = _rounded(np.where(used, middle * (np.float32(LEVELS) / safe), np.float32(0)))
        step = (safe / np.float32(LEVELS)).astype(np.float32, copy=False)
        outputs: npt.NDArray = self.second.sums(coded) * (self.second.row_scale * step) + self.bias
        return outputs

    def predict(
        self, states: npt.ArrayLike, inputs: npt.ArrayLike | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Outputs (..., outputs) of states (..., nodes), and the number of saturated features (...)."""
        q, saturated = self.coded(states, inputs)
        return self.predict_q(q), saturated


def _rounded(q: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """Half away from zero, as C does it without a mathematics library."""
    half = np.float32(0.5)
    return np.trunc(np.where(q < 0, q - half, q + half)).astype(np.int8)
