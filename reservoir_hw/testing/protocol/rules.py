"""How a rule is written down, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.device import Device

Outcome = Literal["held", "broken", "not offered"]
Look = Callable[[Device], None]
LookInSession = Callable[[Device, Client], None]

HELD = "`held`: the state waits for the next RUN."
"""The sentence of several rules."""
SHOWN_BYTES = 4096
"""Of each frame of a broken rule; the rest is counted."""


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
    hangs: bool = False
    """Whether the device works at a request for ever."""

    def frames_in_hex(self, at_most: int = SHOWN_BYTES) -> list[str]:
        """The frames, of each at most so many bytes."""
        return [
            frame[:at_most].hex() + (f"... ({len(frame)} bytes)" if len(frame) > at_most else "")
            for frame in self.frames
        ]


class Rules(list[Rule]):
    """The rules of one group, in the order in which they are looked at."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def rule(self, title: str, *, page: str) -> Callable[[Look], None]:
        """Add a function, which needs no name, as a rule."""
        return partial(self.add, title, page)

    def add(self, title: str, page: str, look: Callable[..., None], /, **what: Any) -> None:
        """Add a rule of several that are looked at in the same way; `what` are the arguments of `look`."""
        self.append(Rule(self.group, title, page, partial(look, **what)))

    def add_in_session(self, title: str, page: str, look: Callable[..., None], /, **what: Any) -> None:
        """As `add`; `look` also gets a client that has the device, at rest."""
        self.add(title, page, _in_session, look=partial(look, **what))

    def in_session(self, title: str, *, page: str) -> Callable[[LookInSession], None]:
        """As `rule`; the function also gets a client that has the device, at rest."""
        return partial(self.add_in_session, title, page)


def _in_session(device: Device, *, look: LookInSession) -> None:
    with device.session() as client:
        look(device, client)
