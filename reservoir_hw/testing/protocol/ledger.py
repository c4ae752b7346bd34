"""Why a rule is not held, and what holds for every message: that is kept while the other rules are looked at."""

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


SENT: dict[str, tuple[str, str]] = {
    "control frame": (
        "a control message is one frame of the right form, with the right checksum",
        "One frame: twelve bytes, then a msgpack map.",
    ),
    "control id": (
        "an answer repeats the id of its question",
        "`id` (an integer that the client chooses and the reply repeats)",
    ),
    "control op": (
        "an answer is the one that the table names, or an error with code and text",
        "`error`: `code`, `text`",
    ),
    "packet": (
        "a packet begins as the table says, and its payload is where it says",
        "A data packet is this:",
    ),
    "data frames": (
        "a data message is a header of 80 bytes and a payload",
        "Two frames: a header of 80 bytes, and a payload, which may be empty.",
    ),
    "header": ("a header has the right checksum, version and zeros", "CRC-32C of the 76 bytes before"),
    "payload": ("a payload has the right checksum", "CRC-32C of the payload"),
    "session": ("a reply repeats the session", "The header of an ERROR repeats session, request and step"),
    "request": ("a reply repeats the request, in order", "1, 2, 3 … within a session; a reply repeats it"),
    "operation": ("a reply has the code of its request + 0x80, or is an ERROR", "reply (code + 0x80)"),
    "unused": (
        "fields that an operation does not name are 0, and the scale is 1",
        "Fields that an operation does not name are 0, and the scale is 1, in requests, replies and errors.",
    ),
    "repeated": (
        "a reply repeats flags, step, batch and steps where the table says so",
        "A reply to RUN repeats flags, step, batch and steps.",
    ),
    "width": (
        "RUN is answered with as many nodes as declared, or outputs as loaded",
        "states (batch, steps, nodes), or outputs with flag 2",
    ),
    "encoding": (
        "RUN is answered in the dtype and scale that are declared",
        "Its dtype and scale must be the declared ones; others are an error of the device.",
    ),
    "length": (
        "an array payload has exactly batch × steps × width numbers",
        "Its length must be exactly that.",
    ),
    "error header": (
        "the header of an ERROR repeats session, request and step",
        "The header of an ERROR repeats session, request and step; its other fields are 0, and its scale is 1.",
    ),
    "error map": ("the map of an ERROR has all six keys, of the right types", "All six keys are there."),
    "error code": ("the code of an ERROR is in the table", "| code | | state lost |"),
    "error lost": (
        "state_lost is true for the codes that lose the state",
        "`state_lost` says whether the state is lost now, after this error.",
    ),
    "frame size": ("no frame is larger than max_frame_bytes", "The limit holds for each frame, and for replies, too."),
    "finite": (
        "no state is NaN, infinite or 9e37 and more where the device declares finite",
        "whether the device itself answers with an error instead of a state that is NaN, infinite or 9e37 and more (by "
        "9.9e37 instruments say that there is no number).",
    ),
    "time": (
        "time and period of a reply to RUN are 0 or make sense, and the time does not go back",
        "device time of the first step in ns, 0 if not known (replies to RUN)",
    ),
}
"""Names, titles and sentences of the page."""


class Ledger:
    """Which of these were seen, and the first message that broke each."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.broken: dict[str, Broken] = {}

    def look(self, name: str, fits: bool, what: str, frames: Sequence[bytes]) -> None:
        """Note one that was kept or broken."""
        self.seen.add(name)
        if not fits and name not in self.broken:
            self.broken[name] = Broken(what, frames, page=SENT[name][1])

    def must(self, name: str, fits: bool, what: str, frames: Sequence[bytes]) -> None:
        """Note it, and raise `Broken` if nothing can be made of the message."""
        self.look(name, fits, what, frames)
        if not fits:
            raise Broken(what, frames, page=SENT[name][1])
