"""What the keys of a spec may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def is_number(value: Any) -> bool:
    """Whether this is a finite number, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_range(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]


SPEC: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "dtype": ("float32 or float64", lambda value: value in ("float32", "float64")),
    "input_range": ("[lowest, highest] or nil", _is_range),
    "state_range": ("[lowest, highest] or nil", _is_range),
    "max_batch": ("a number of sequences or nil", lambda value: value is None or (_is_count(value) and value > 0)),
    "continuity": (
        "held, replayed or free_running",
        lambda value: value in ("held", "replayed", "free_running"),
    ),
    "held_for_s": ("seconds or nil", lambda value: value is None or (is_number(value) and value > 0)),
    "memory_steps": ("a number of steps", _is_count),
    "step_period_s": ("seconds or nil", lambda value: value is None or (is_number(value) and value >= 0)),
    "reset_time_s": ("seconds or nil", lambda value: value is None or (is_number(value) and value >= 0)),
    "clock": ("device, host or external", lambda value: value in ("device", "host", "external")),
    **dict.fromkeys(
        ("snapshot", "settable", "programmable", "deterministic"),
        ("true or false", lambda value: isinstance(value, bool)),
    ),
}
"""What each key that may be missing is, in words and as a test."""


def fitting(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without those keys that make no sense: they count as missing."""
    return {name: value for name, value in spec.items() if name not in SPEC or SPEC[name][1](value)}
