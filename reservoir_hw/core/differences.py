"""The first thing in which two nested descriptions differ, for messages."""

from __future__ import annotations

from typing import Any, NamedTuple


class _Absent(str):
    """Says in a message that there is no value."""

    def __repr__(self) -> str:
        return str(self)


class Difference(NamedTuple):
    """Where they differ, and what stands there; that nothing does is said in words."""

    place: tuple[str | int, ...]
    before: Any
    now: Any

    @property
    def key(self) -> str:
        """The place with dots."""
        return ".".join(map(str, self.place))


def first_change(before: Any, now: Any, place: tuple[str | int, ...] = ()) -> Difference | None:
    """The first difference, or None; mappings, and lists of the same length, are gone through item by item."""
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        before, now = dict(enumerate(before)), dict(enumerate(now))
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return None if before == now else Difference(place, before, now)
    for key in dict.fromkeys([*now, *before]):
        if key not in before:
            return Difference((*place, key), _Absent("nothing there"), now[key])
        if key not in now:
            return Difference((*place, key), before[key], _Absent("not there"))
        found = first_change(before[key], now[key], (*place, key))
        if found is not None:
            return found
    return None
