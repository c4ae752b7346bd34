"""What can come of a rule, and how a rule is written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from reservoir_hw.testing.protocol.device import Device

Outcome = Literal["held", "broken", "not offered"]
Look = Callable[["Device"], None]

SHOWN_BYTES = 4096
"""Of each frame of a broken rule; the rest is counted."""


class Broken(Exception):
    """The device does not do what the page says.

    Args:
        what: What it did instead.
        frames: Where that can be seen. By default the frames that came last.
        page: The sentence of the page that it breaks, if it is not that of the rule at hand.
    """

    def __init__(self, what: str, frames: Sequence[bytes] = (), *, page: str = "") -> None:
        super().__init__(what)
        self.frames = list(frames)
        self.page = page


class NotOffered(Exception):
    """The device declares that it does not have this, or it cannot be seen from outside. The text says why."""


@dataclass(frozen=True)
class Rule:
    """One thing that the page says about a device."""

    group: str
    title: str
    page: str
    """The sentence, or the cell of a table, as it stands on the page."""
    look: Look
    """Returns if the device keeps it; raises `Broken` or `NotOffered`."""


@dataclass(frozen=True)
class Row:
    """A rule and what came of it."""

    rule: Rule
    outcome: Outcome
    detail: str = ""
    page: str = ""
    frames: tuple[bytes, ...] = ()

    def frames_in_hex(self) -> list[str]:
        """The frames, long ones cut."""
        return [
            frame[:SHOWN_BYTES].hex() + (f"... {len(frame)} bytes" if len(frame) > SHOWN_BYTES else "")
            for frame in self.frames
        ]


class Rules(list[Rule]):
    """The rules of one group, in the order in which they are looked at."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def rule(self, title: str, *, page: str) -> Callable[[Look], Look]:
        """Add a function as a rule."""

        def add(look: Look) -> Look:
            self.append(Rule(self.group, title, page, look))
            return look

        return add
