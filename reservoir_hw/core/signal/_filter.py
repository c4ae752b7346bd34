"""Bandwidth of a signal path."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PositiveFloat

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import InputRangeError, ShapeError


class LowPass(Config):
    """A one-pole low-pass, y_n = y_(n-1) + b (x_n - y_(n-1)) with b = 1 - exp(-2π bandwidth / sample rate).

    That is an RC element driven by a signal that is held during each sample period, at the end of the period.
    """

    bandwidth_hz: PositiveFloat
    sample_rate_hz: PositiveFloat

    @property
    def share(self) -> float:
        """b, the share of the way to its new value that the signal goes in one sample period.

        With one sample for each virtual node this is what `nonidealities.loop.bandwidth` means in a delay loop.
        """
        return -math.expm1(-2 * math.pi * self.bandwidth_hz / self.sample_rate_hz)

    def apply(self, samples: ArrayLike, before: ArrayLike = 0.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Filter samples (..., time); returns them and the last value (...,), both float64.

        `before` is the last value of the samples that came before, (...,) or one number; by default the path is at
        rest. A signal in chunks, each with the last value of the one before, gives the same bits as in one piece.
        Raises `ShapeError` for shapes other than these, `InputRangeError` for values that are not finite.
        """
        x = np.asarray(samples, np.float64)
        if x.ndim == 0:
            raise ShapeError("LowPass takes samples (..., time), not one number")
        if not np.isfinite(x).all():
            raise InputRangeError(f"LowPass: {int((~np.isfinite(x)).sum())} samples are not finite numbers")
        start = np.asarray(before, np.float64)
        if start.shape not in ((), x.shape[:-1]):
            raise ShapeError(f"LowPass: `before` must be one number or {x.shape[:-1]}, its shape is {start.shape}")
        start = np.broadcast_to(start, x.shape[:-1])
        b = self.share
        filtered = np.empty_like(x)
        # One number after another: a sum in blocks would round by where the chunks begin.
        for row in np.ndindex(x.shape[:-1]):
            values = accumulate(x[row].tolist(), lambda y, v: y + b * (v - y), initial=float(start[row]))
            filtered[row] = np.fromiter(values, np.float64, x.shape[-1] + 1)[1:]
        return filtered, filtered[..., -1].copy() if x.shape[-1] else start.copy()
