"""How much of a device may be used: steps, or a time."""

from __future__ import annotations

from reservoir_hw.core.errors import ConfigurationError

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
