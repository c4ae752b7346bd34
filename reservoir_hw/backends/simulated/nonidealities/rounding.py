"""Weights as a device with few bits holds them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError

if TYPE_CHECKING:
    from reservoir_hw.backends.simulated.nonidealities.configuration import LoopNonidealities
    from reservoir_hw.networks.gated_weights import GatedWeights
    from reservoir_hw.networks.weights import EsnWeights

Array = NDArray[Any]
_Weights = TypeVar("_Weights", "EsnWeights", "GatedWeights")


def to_float16(weights: Array) -> Array:
    """The nearest float16 numbers, as float64. Raises `ConfigurationError` beyond ±65504, the largest of them."""
    with np.errstate(over="ignore"):
        rounded = weights.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise ConfigurationError(
            f"weights reach {np.abs(weights).max():g}, float16 ends at 65504: remove weight_storage, or scale down"
        )
    return rounded.astype(np.float64)


def to_bfloat16(weights: Array) -> Array:
    """The nearest bfloat16 numbers (eight bits of significand, the exponents of float32), as float64.

    Raises `ConfigurationError` beyond ±3.39e38, the largest of them.
    """
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    # To the nearest, ties to even: numpy has no such type.
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    if not np.isfinite(rounded).all():
        raise ConfigurationError(
            f"weights reach {np.abs(weights).max():g}, bfloat16 ends at 3.39e38: remove weight_storage, or scale down"
        )
    return rounded.astype(np.float64)


ROUNDINGS = {"float16": to_float16, "bfloat16": to_bfloat16}


def to_weight_bits(weights: _Weights, loop: LoopNonidealities) -> _Weights:
    """The weights with every number rounded to `weight_bits`, where the device has them; as `to_bits` otherwise."""
    if loop.weight_bits is None:
        return weights
    return weights.rounded(partial(to_bits, bits=loop.weight_bits, limit=loop.weight_limit))


def to_bits(weights: Array, bits: int, limit: float) -> Array:
    """The nearest of 2^bits multiples of 2 limit / 2^bits from -limit on.

    Raises `ConfigurationError` for weights beyond ±limit: a chip's compiler would refuse them too.
    """
    largest = float(np.abs(weights).max(initial=0.0))
    if largest > limit:
        raise ConfigurationError(
            f"weights reach {largest:g}, beyond nonidealities.loop.weight_limit {limit:g}: raise it, or scale down"
        )
    lsb = 2 * limit / 2**bits
    return np.clip(np.floor(weights / lsb + 0.5) * lsb, -limit, limit - lsb)
