"""The examples in hex of docs/serial-protocol.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "serial-protocol.md"


class Example(NamedTuple):
    """A body without its checks, the checks as on the line, and what is on the line."""

    title: str
    body: bytes
    checks: bytes
    line: bytes


def examples() -> list[Example]:
    """All of them, in their order."""
    pattern = (
        r"^(\S[^\n]*):\n\n((?: {4}[0-9a-f ]+\n)+) {4}checks ([0-9a-f ]+)\n {4}line\n((?: {4}[0-9a-f ]+(?:\n|\Z))+)"
    )
    found = re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Example(title, *map(bytes.fromhex, parts)) for title, *parts in found]
