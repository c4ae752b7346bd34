"""Texts that others sent: made fit to be shown, and to be sent on."""

from __future__ import annotations


def printable(text: str) -> str:
    """What others sent, as it may be shown in a log or on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def sendable(text: str) -> str:
    """A text that may contain bytes from an instrument, which need not be text."""
    return text.encode(errors="backslashreplace").decode()


def clipped(text: str, size: int) -> str:
    """A text of at most `size` bytes."""
    raw = text.encode()
    return text if len(raw) <= size else raw[: size - 3].decode(errors="ignore") + "..."
