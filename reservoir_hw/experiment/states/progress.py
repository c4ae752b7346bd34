"""How far a run, a harvest or an import has come, for whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reservoir_hw.core.reservoir import Reservoir

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


def following(reservoirs: Sequence[Reservoir], add: Callable[[int], None]) -> Callable[[int], None]:
    """Adds what the devices have counted since the last call, from their opening on, whatever it is called with."""
    seen = 0

    def look(_steps: int = 0) -> None:
        nonlocal seen
        counted = sum(reservoir.counters.steps for reservoir in reservoirs)
        add(counted - seen)
        seen = counted

    look()
    return look


class StepCounter:
    """Adds up steps for one progress report."""

    def __init__(self, progress: Progress | None, total: int = 0) -> None:
        self._progress = progress
        self.total, self._done, self._what = total, 0, ""

    def say(self, what: str) -> None:
        """What is being done from now on."""
        self._what = what
        self.add(0)

    @property
    def done(self) -> int:
        """Steps so far."""
        return self._done

    def add(self, steps: int) -> None:
        """So many steps were done."""
        self._done += steps
        if self._progress is not None:
            self._progress(self._what, self._done, max(self.total, self._done))
