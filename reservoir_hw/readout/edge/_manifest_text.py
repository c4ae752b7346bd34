"""`manifest.json` as bytes: strict JSON, and its problems in one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from reservoir_hw.readout.edge._refusal import Refused, shown
from reservoir_hw.readout.edge.manifest import FORMAT, VERSION, Manifest


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in a file. Raises `Refused` for anything that is none, or of a version that is not known."""
    try:
        found = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise Refused("is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused("is no JSON object")
    if found.get("format") != FORMAT:
        raise Refused(f"has the format {shown(str(found.get('format')))}, not {FORMAT!r}: it is something else")
    version = found.get("version")
    if type(version) is not int or version < 1:
        raise Refused(f"has the version {shown(str(version))}, which is no version of the format")
    if version > VERSION:
        raise Refused(
            f"has version {version} of the format: it was made by a newer version of reservoir-hw, and this one reads "
            f"version {VERSION}; update reservoir-hw, or export the model with this version"
        )
    return _validated(data)


def manifest_text(facts: Mapping[str, Any]) -> bytes:
    """The file for these fields, which may be pydantic models or what JSON knows."""
    try:
        text = json.dumps(dict(facts), indent=1, sort_keys=True, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise Refused(f"cannot be described in JSON: {error}") from error
    manifest = _validated(text)
    return json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _validated(data: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(data, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise Refused(f"{shown(where)[1:-1] + ': ' if where else ''}{problem['msg']}{more}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")
