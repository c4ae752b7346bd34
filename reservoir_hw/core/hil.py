"""The section `hil:` of a reservoir: what its tests need to know, and the device is not made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, ValidationInfo, field_validator

from reservoir_hw.core.configuration import Config, Document
from reservoir_hw.core.functions import FUNCTION

Group = Literal[
    "repeatability",
    "declaration",
    "shapes",
    "reset",
    "continuity",
    "isolation",
    "causality",
    "memory",
    "range",
    "timing",
    "stability",
    "snapshot",
    "settable",
    "programmable",
    "recovery",
    "safety",
    "identity",
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The groups of tests, in the order in which they run."""


def _reason(text: str) -> str:
    if not text.strip():
        raise ValueError("say why the device does not offer it")
    return text


def _action(action: Any) -> Any:
    if isinstance(action, str):
        known = re.match(FUNCTION, action) is not None
    else:
        known = isinstance(action, list | tuple) and bool(action) and all(isinstance(text, str) for text in action)
    if not known:
        raise ValueError("it must be module:function, or a command as a list of texts")
    return tuple(action) if isinstance(action, list) else action


Action = Annotated[str | tuple[str, ...], BeforeValidator(_action)]
"""A function, "package.module:function", or a command and its arguments."""


class HilConfig(Config):
    """What tests with hardware in the loop need to know. Nothing in it decides about states."""

    folder: Path = Field(
        default=Path(),
        description="where commands run and relative paths begin; by default the folder of this file",
    )
    not_offered: dict[Group, Annotated[str, AfterValidator(_reason)]] = Field(
        default_factory=dict, description="groups of tests that mean nothing to this device, each with the reason"
    )
    recover: Action | None = Field(default=None, description="brings the device back after a fault")
    safe_check: Action | None = Field(
        default=None,
        description="says whether the device is in its safe state now, by another path than its driver",
    )
    fault: Action | None = Field(default=None, description="makes the device fail once")
    twin: str | None = Field(default=None, description="the reservoir file of a simulation of this device")
    golden: str | None = Field(default=None, description="a trace of this device that it is compared with")
    timeout_s: PositiveFloat = Field(default=30.0, description="a command may take so long")

    @field_validator("twin", "golden")
    @classmethod
    def _in_folder(cls, path: str | None, info: ValidationInfo) -> str | None:
        # A trace may be a URL.
        return path if path is None or "://" in path else str(info.data.get("folder", Path()) / path)


def place_hil(document: Document) -> None:
    """Write into each section `hil` of a reservoir the folder of the file in which it stands."""
    _place(document.data, (), document)


def _place(node: Any, at: tuple[str | int, ...], document: Document) -> None:
    if isinstance(node, dict):
        hil = node.get("hil")
        if "kind" in node and isinstance(hil, dict) and isinstance(hil.get("folder", ""), str):
            hil["folder"] = str((document.folder((*at, "hil")) / hil.get("folder", "")).resolve())
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            _place(value, (*at, key), document)
