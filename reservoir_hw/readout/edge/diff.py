"""What differs between two bundles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from reservoir_hw.readout.edge.bundle import Bundle

_PIECE = 1 << 20


@dataclass(frozen=True)
class Field:
    """An entry of the manifest; None where it is missing."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class WeightDifference:
    """An array of the weights. `largest` is max|a − b|, `relative` is that over max|a|.

    Both are None if the array is in one bundle only, or has another shape or dtype: `a` and `b` say what it is there.
    """

    name: str
    a: str | None
    b: str | None
    largest: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class Difference:
    """What `diff` found; `fingerprints` are those of reservoirs that differ, by slot."""

    a: str
    b: str
    fields: tuple[Field, ...]
    files: tuple[Field, ...]
    fingerprints: tuple[Field, ...]
    weights: tuple[WeightDifference, ...]
    same_weights: int = field(default=0)

    @property
    def identical(self) -> bool:
        """Whether every byte of every file is the same."""
        return not (self.fields or self.files or self.fingerprints or self.weights)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "identical": self.identical}


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Difference:
    """Compare two bundles: manifests field by field, files by their hashes, weights number by number.

    Raises `ConfigurationError` if one of them cannot be opened.
    """
    with Bundle.open(a) as first, Bundle.open(b) as second:
        ours, theirs = (bundle.manifest.model_dump(mode="json") for bundle in (first, second))
        for facts in (ours, theirs):
            # It differs where anything does.
            del facts["manifest_sha256"]
        files = _fields(
            {name: record["sha256"] for name, record in ours.pop("files").items()},
            {name: record["sha256"] for name, record in theirs.pop("files").items()},
        )
        prints = _fields(
            *({f"slot {index}": slot.fingerprint for index, slot in enumerate(bundle.manifest.slots)}
              for bundle in (first, second))
        )  # fmt: skip
        weights, same = _weights(first.weights, second.weights)
        fields = tuple(entry for entry in _fields(_flat(ours), _flat(theirs)) if not _is_fingerprint(entry.name))
        return Difference(first.name, second.name, fields, files, prints, weights, same)


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    """A leaf by its place: `segments.0.reads.1.name`."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, Any] = {}
    for key, child in children:
        found |= _flat(child, f"{at}.{key}" if at else str(key))
    return found or {at: value}


def _is_fingerprint(name: str) -> bool:
    parts = name.split(".")
    return len(parts) == 3 and parts[0] == "slots" and parts[2] == "fingerprint"


def _fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Field, ...]:
    names = [*a, *(name for name in b if name not in a)]
    return tuple(Field(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _weights(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> tuple[tuple[WeightDifference, ...], int]:
    found, same = [], 0
    for name in sorted(a.keys() | b.keys()):
        ours, theirs = a.get(name), b.get(name)
        kinds = _kind(ours), _kind(theirs)
        if ours is None or theirs is None or kinds[0] != kinds[1]:
            found.append(WeightDifference(name, *kinds))
            continue
        largest, scale = _distance(ours.reshape(-1), theirs.reshape(-1))
        if largest == 0:
            same += 1
            continue
        relative = largest / scale if scale else float("inf")
        found.append(WeightDifference(name, *kinds, largest, relative))
    return tuple(found), same


def _distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """max|a − b| and max|a|, in pieces; infinity where only one of two numbers is finite."""
    largest = scale = 0.0
    for start in range(0, a.size, _PIECE):
        ours, theirs = a[start : start + _PIECE].astype(np.float64), b[start : start + _PIECE].astype(np.float64)
        equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            apart = np.where(equal, 0.0, np.abs(ours - theirs))
        largest = max(largest, float(np.where(np.isnan(apart), np.inf, apart).max()))
        scale = max(scale, float(np.abs(ours[np.isfinite(ours)]).max(initial=0.0)))
    return largest, scale


def _kind(array: np.ndarray | None) -> str | None:
    return None if array is None else f"{array.dtype} {' × '.join(map(str, array.shape)) or 'scalar'}"
