"""Why a rule is not held."""

from __future__ import annotations

from collections.abc import Sequence


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


class NotThePage(Broken):
    """Bytes that are not what the page says: nothing can be made of them."""


class Hangs(Broken):
    """The device works at a request for ever: nothing more can be looked at."""


class NotOffered(Exception):
    """The device declares that it does not have this, or it cannot be seen from outside. The text says why."""
