"""The examples in hex of docs/serial-protocol.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "serial-protocol.md"


class Example(NamedTuple):
    """A body without its CRC, its CRC, and what is on the line."""

    title: str
    body: bytes
    crc: int
    line: bytes


def examples() -> list[Example]:
    """All of them, in their order."""
    pattern = r"^(\S[^\n]*):\n\n((?: {4}[0-9a-f ]+\n)+) {4}CRC ([0-9a-f]{4})\n {4}line\n((?: {4}[0-9a-f ]+(?:\n|\Z))+)"
    found = re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Example(title, bytes.fromhex(body), int(crc, 16), bytes.fromhex(line)) for title, body, crc, line in found]
