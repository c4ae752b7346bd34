"""What every measure returns: a value, an interval that says how it was found, and a note."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Where the true value lies with the probability `confidence`; `method` says how that was found.

    An end is infinite where nothing bounds it.
    """

    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The result of a measure. Each measure adds the arrays that its figure shows."""

    value: float
    interval: Interval
    note: str = ""

    @property
    def has_figure(self) -> bool:
        """Whether there is anything to be drawn of it."""
        return True
