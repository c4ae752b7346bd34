"""docs/protocol/golden/: messages of the device protocol as bytes, and what they say."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "protocol" / "golden"


@dataclass(frozen=True)
class Golden:
    """One of the messages: its frames, and the JSON beside them."""

    name: str
    frames: list[bytes]
    says: dict[str, Any]

    @property
    def is_control(self) -> bool:
        return self.says["socket"] == "control"

    @property
    def is_packet(self) -> bool:
        """Whether it is a data packet of a Unix socket."""
        return self.says["socket"] == "unix data"

    @property
    def is_spoiled(self) -> bool:
        """Whether no codec may take it."""
        return "spoiled" in self.says

    @property
    def map(self) -> dict[str, Any] | None:
        return _read(self.says["map"]) if "map" in self.says else None

    @property
    def header(self) -> dict[str, Any]:
        return {key: _read(value) for key, value in self.says["header"].items()}

    @property
    def arrays(self) -> dict[str, np.ndarray] | None:
        """Named arrays, little-endian."""
        if "arrays" not in self.says:
            return None
        return {
            name: np.array(numbers, "?" if dtype == "b1" else f"<{dtype}").reshape(shape)
            for name, (dtype, shape, numbers) in self.says["arrays"].items()
        }


def _read(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    if isinstance(value, dict):
        return {key: _read(one) for key, one in value.items()}
    if isinstance(value, str) and value.isdecimal() and int(value) > 1 << 53:
        return int(value)
    return value


@cache
def golden_frames() -> list[Golden]:
    """All messages; those that no codec may take come too."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        says = json.loads(path.read_text(encoding="utf-8"))
        rest = path.with_suffix(".bin").read_bytes()
        assert len(rest) == sum(says["frames"])
        ends = [sum(says["frames"][: n + 1]) for n in range(len(says["frames"]))]
        frames = [rest[end - size : end] for end, size in zip(ends, says["frames"], strict=True)]
        found.append(Golden(path.stem, frames, says))
    assert len(found) > 50
    assert all(not golden.says.get("header") or math.isfinite(golden.header["scale"]) for golden in found)
    return found
