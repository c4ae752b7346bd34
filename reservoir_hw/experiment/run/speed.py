"""Processor time and memory of this process, measured on a small piece of the work that a run will do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

# A first round that takes longer is no warming up.
_LONG_S = 1.5


@dataclass(frozen=True)
class Demand:
    """What a part of a run takes: `processor_s` of all threads, and `more_bytes` that the measurement did not need."""

    processor_s: float
    more_bytes: int = 0

    def after(self, processor_s: float) -> Demand:
        """This and what came before it."""
        return replace(self, processor_s=self.processor_s + processor_s)


class _Enough(Exception):
    """The measurement has what it needs."""


class Rounds:
    """Rounds of some items each, and the processor seconds that they took, until they have taken `for_s`.

    Processor time does not depend on what else the machine does. The first round warms up; it counts where it is long.
    """

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._found: list[tuple[int, float]] = []

    def add(self, items: int, seconds: float) -> None:
        """A further round."""
        self._found.append((items, seconds))

    @property
    def enough(self) -> bool:
        """Whether no further round is needed."""
        return bool(self._counted) and sum(seconds for _, seconds in self._found) > self._for_s

    @property
    def seconds_for_one(self) -> float:
        """Processor seconds of an item."""
        counted = self._counted or self._found
        return sum(seconds for _, seconds in counted) / max(1, sum(items for items, _ in counted))

    @property
    def _counted(self) -> list[tuple[int, float]]:
        first_is_long = bool(self._found) and self._found[0][1] > _LONG_S
        return self._found if first_is_long and len(self._found) == 1 else self._found[1:]


def seconds_for_one(rounds: Iterable[int], for_s: float) -> float:
    """Processor seconds of an item, from rounds of so many items."""
    found, began = Rounds(for_s), time.process_time()
    for items in rounds:
        now = time.process_time()
        found.add(items, now - began)
        if found.enough:
            break
        began = now
    return found.seconds_for_one


def seconds_of_a_step(train: Callable[[Callable[[float], None]], object], for_s: float) -> float:
    """The same for a training that calls what it is given with its processor seconds after each step."""
    found, seen = Rounds(for_s), 0.0

    def told(processor_seconds: float) -> None:
        nonlocal seen
        found.add(1, processor_seconds - seen)
        seen = processor_seconds
        if found.enough:
            raise _Enough

    with contextlib.suppress(_Enough):
        train(told)
    return found.seconds_for_one


def peak_bytes() -> int:
    """The most memory that this process has had. Not `getrusage`, which begins with that of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status does not say VmHWM")
