"""What a device says about itself, as it comes over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.drivers.zeromq.frames import Encoding, checked_encoding


@dataclass(frozen=True)
class Declaration:
    """What a device says about itself (docs/protocol.md). `spec` is not validated here."""

    spec: Mapping[str, Any]
    inputs: Encoding
    states: Encoding
    chunked: bool
    readout: bool
    finite: bool


def declaration_of(content: Mapping[str, Any]) -> Declaration:
    """The declaration in an answer, or `ProtocolError`."""
    spec, chunked, readout = content.get("spec"), content.get("chunked"), content.get("readout")
    if not isinstance(spec, dict) or not isinstance(chunked, bool):
        raise ProtocolError("the declaration of the device lacks spec (a map) or chunked (a truth value)")
    encodings = []
    for name in ("inputs", "states"):
        entry = content.get(name)
        if not isinstance(entry, list) or len(entry) != 2:
            raise ProtocolError(f"the declaration of the device lacks {name}: [dtype, scale]")
        encodings.append(checked_encoding(*entry))
    return Declaration(spec, *encodings, chunked=chunked, readout=bool(readout), finite=content.get("finite") is True)
