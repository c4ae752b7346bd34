"""Checks of numbers that a caller gives. A wrong one raises an error whose message is one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, ReservoirError


def whole_number(name: str, value: Any, *, least: int = 1, error: type[ReservoirError] = ConfigurationError) -> int:
    """`value` as an int; raises `error` unless it is a whole number ≥ `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise error(f"{name} must be a whole number ≥ {least}, not {value!r}")
    return int(value)


def real_array(name: str, values: Any) -> NDArray[np.float64]:
    """`values` as a float64 array of its own, or a `ConfigurationError` unless all are finite real numbers."""
    try:
        given = np.asarray(as_numpy(values))
        if np.iscomplexobj(given):
            raise TypeError("complex numbers")
        array = np.array(given, np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} must be an array of real numbers: {error}") from error
    check_finite(name, array)
    return array


def check_finite(name: str, values: NDArray[Any]) -> None:
    """Raise `ConfigurationError` for NaN and infinity."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ConfigurationError(
            f"{name} holds {bad.size} value(s) that are not finite, the first at flat position {bad[0]}"
        )


def at_least(**limits: tuple[float, float]) -> None:
    """Check numbers given as `name=(value, least)`; raise `ConfigurationError` for the first that is smaller."""
    for name, (value, least) in limits.items():
        if value < least:
            raise ConfigurationError(f"{name} is {value}; it must be at least {least}")


def number_in(name: str, value: Any, low: float, high: float, *, excluding: tuple[float, ...] = ()) -> float:
    """`value` as a float, or a `ConfigurationError` unless it is finite and lies in low..high."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not low <= value <= high or value in excluding:
        limits = f"finite number of at least {low:g}" if math.isinf(high) else f"number within {low:g}..{high:g}"
        without = "".join(f", {number:g} excluded" for number in excluding)
        raise ConfigurationError(f"{name} must be a {limits}{without}, not {value!r}")
    return float(value)


# ---- How much of a device may be used: steps, or a time.


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_budget(text: str) -> tuple[int | None, float | None]:
    """Device steps ("20000"), or seconds ("30s", "10m", "2h"); the other is None. Raises `ConfigurationError`."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    try:
        value = float(number) if unit else int(number.replace("_", "").replace(",", ""))
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{text!r} is no budget: give device steps (20000), or a time (30s, 10m, 2h)")
    return (None, value * _UNITS[unit]) if unit else (int(value), None)
