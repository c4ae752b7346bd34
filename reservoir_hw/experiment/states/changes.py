"""Whether a device is still what it was when a harvest began: its identity, and the settings that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from reservoir_hw.core.provenance import plain
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import Identity

Changes: TypeAlias = dict[str, tuple[Any, Any]]
"""By name: what it was, and what it is now."""

_IDENTITY = ("vendor", "model", "serial", "firmware", "content", "fingerprint")


def changed_identity(began: Identity, now: Identity) -> Changes:
    """Nothing if it is the same device."""
    if now.fingerprint == began.fingerprint:
        return {}
    pairs = {name: (getattr(began, name), getattr(now, name)) for name in _IDENTITY}
    changes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    # The fingerprint is made of the others: it says something only where they are the same.
    return {name: pair for name, pair in changes.items() if name != "fingerprint" or len(changes) == 1}


def changed_settings(before: Mapping[str, Any], reservoir: Reservoir) -> Changes:
    """Settings of which the device does not report the same as before."""
    now = plain(reservoir.read_back())
    names = dict.fromkeys([*before, *now])
    pairs = {name: (before.get(name), now.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if not _same(*pair, reservoir.tolerances.get(name, 0.0))}


def in_words(changes: Changes) -> str:
    """For people."""
    return ", ".join(f"{name} was {before!r} and is {now!r} now" for name, (before, now) in changes.items())


def _same(before: Any, now: Any, tolerance: float) -> bool:
    numbers = all(isinstance(one, int | float) for one in (before, now))
    return abs(before - now) <= tolerance if numbers else before == now
