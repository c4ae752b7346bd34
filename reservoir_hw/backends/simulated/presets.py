"""Sets of non-idealities of real devices, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Values for the sections of `nonidealities:`, and where they come from."""

    source: str
    values: Mapping[str, Mapping[str, Any]]


PRESETS: dict[str, Preset] = {}
