"""Texts that others sent: made fit to be shown, and to be sent on."""

from __future__ import annotations

LONGEST = 1 << 16


def printable(text: str) -> str:
    """What others sent, as it may be shown in a log or on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def shown(text: str) -> str:
    """A text of a device for a message: as `printable`, but its lines stay lines."""
    return "\n".join(map(printable, text[:LONGEST].splitlines()))


def sendable(text: str) -> str:
    """A text that may contain bytes from an instrument, which need not be text."""
    return text.encode(errors="backslashreplace").decode()


def clipped(text: str, size: int) -> str:
    """A text of at most `size` bytes."""
    raw = text.encode()
    return text if len(raw) <= size else raw[: size - 3].decode(errors="ignore") + "..."
