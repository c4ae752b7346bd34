"""A model for the edge in one folder or one file: written whole, and checked before any of it is used."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, NotOpen
from reservoir_hw.readout.edge._archive import MANIFEST_LIMIT, PIECE, Archive, Content, add, packing, replacing
from reservoir_hw.readout.edge._graph_check import check_graph, parse_header, views
from reservoir_hw.readout.edge.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    WEIGHTS,
    Manifest,
    Refused,
    about,
    check_names,
    manifest_text,
    parse_manifest,
    shown,
)

if TYPE_CHECKING:
    from reservoir_hw.tasks.task import Table

GRAPH_LIMIT = 16 << 20
READ_LIMIT = 1 << 30
"""Bytes. The weights alone have no limit, as they are mapped and never read as a whole."""


def write_bundle(path: str | os.PathLike[str], facts: Mapping[str, Any], files: Mapping[str, Content]) -> Manifest:
    """Write a bundle; returns its manifest.

    `facts` are the fields of `Manifest` without `format`, `version` and `files`. `files` maps names in the bundle to
    bytes, or to an iterable of pieces of bytes, which is gone through once: nothing is held in memory that was not
    there before. A path that ends with `.rhw` or `.zip` becomes a stored (uncompressed) zip file, any
    other a folder. The same content gives the same bytes.

    Everything is written beside the target, opened with all checks of `Bundle.open`, and then renamed, so that
    nothing is left behind by a failure. A bundle that is there already is replaced as a whole.

    Raises `ConfigurationError` if what would be written is no valid bundle, or if something is at `path` that is no
    bundle or holds files that are not the bundle's.
    """
    target = Path(os.path.realpath(path))
    name = os.fspath(path)
    with about(name):
        check_names([*files, MANIFEST])
    with about(name, reading=False), replacing(target) as new:
        with packing(new) as opened:
            records = {file: add(opened, file, files[file]) for file in sorted(files)}
            add(opened, MANIFEST, manifest_text({"format": FORMAT, "version": VERSION, **facts, "files": records}))
        with Bundle(new, name) as bundle:
            manifest = bundle.manifest
    return manifest


class Bundle:
    """A bundle whose every file was checked when it was opened.

    with Bundle.open("model.rhw") as bundle:
        bundle.manifest.model, bundle.weights["block_0.weight"], bundle.graph(0)

    The path itself may be a symbolic link, as `current` -> a version is; nothing inside a folder may be one. A hard
    link is a file like any other: what counts is its content, and that is compared with the manifest's hash.

    `weights` are read-only views into the mapped file. They stay valid after `close`, which lets go of the file as
    soon as the last of them is gone. What is mapped can be changed by who may write to the file, as a program can;
    what `read`, `graph` and `tensors` return was hashed as it was returned.
    """

    def __init__(self, path: str | os.PathLike[str], name: str | None = None, expect: str | None = None) -> None:
        self.name = os.fspath(path) if name is None else name
        """The path, as it appears in messages."""
        self.digest: str
        """SHA-256 of `manifest.json`, and with it of everything: the same for a folder and a zip of one content."""
        self._closed = False
        with about(self.name):
            self._archive = Archive(path)
        try:
            self._check(expect)
        except BaseException:
            self._archive.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], expect: str | None = None) -> Self:
        """Open a folder or a stored zip and check everything in it; first, that its `digest` is `expect`.

        Raises `ConfigurationError` that names the bundle and the file if anything is missing, damaged, not listed
        in the manifest, a link, compressed, of an unknown version, or a graph that is not made of standard ONNX
        operators and the bundle's own weights; or if it is another bundle than the expected one.
        """
        return cls(path, expect=expect)

    def require(self, digest: str) -> None:
        """Raise `ConfigurationError` if this is no SHA-256, or not that of this bundle."""
        if not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise ConfigurationError(
                f"{shown(digest)} is no digest of a bundle to expect: take the 64 hexadecimal digits that "
                "`reservoir-hw bundle info` shows as sha256"
            )
        if digest.lower() != self.digest:
            raise ConfigurationError(
                f"bundle {self.name}: is another one than expected: its sha256 is {self.digest}, and {digest.lower()} "
                "was expected"
            )

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each file, the manifest's among them."""
        return MappingProxyType(self._archive.sizes)

    def read(self, name: str) -> bytes:
        """A file of the bundle, at most 1 GiB. Raises `ConfigurationError` if it has changed since it was opened."""
        self._check_open()
        with about(self.name, shown(name)):
            record = self.manifest.files.get(name)
            if record is None:
                raise Refused("the manifest does not list it")
            if record.bytes > READ_LIMIT:
                raise Refused(f"has {record.bytes} bytes, more than the {READ_LIMIT} that are read into memory")
            data = self._archive.read(name, 0, record.bytes)
            if hashlib.sha256(data).hexdigest() != record.sha256:
                raise Refused("does not have the SHA-256 that the manifest names: it is damaged or was changed")
            return data

    def graph(self, index: int) -> bytes:
        """The ONNX graph of a segment."""
        return self.read(self.manifest.segments[index].graph)

    def weights_of(self, index: int) -> dict[str, np.ndarray]:
        """Those of the weights that the graph of a segment needs."""
        self._check_open()
        return {name: self.weights[name] for name in self._needed[index]}

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a safetensors file, such as the golden values; read-only."""
        array = np.frombuffer(self.read(name), np.uint8)
        with about(self.name, shown(name)):
            return views(array, parse_header(_taken_from(array), array.size))

    def close(self) -> None:
        """Let go of the files."""
        self._closed = True
        self._archive.close()
        self.weights = MappingProxyType({})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise NotOpen(f"the bundle {self.name} is closed: open it again")

    def _check(self, expect: str | None) -> None:
        sizes = self._archive.sizes
        with about(self.name):
            check_names(list(sizes))
            if MANIFEST not in sizes:
                raise Refused(f"has no {MANIFEST}: it is no bundle, or not a whole one")
        with about(self.name, MANIFEST):
            if sizes[MANIFEST] > MANIFEST_LIMIT:
                raise Refused(f"has {sizes[MANIFEST]} bytes, more than the {MANIFEST_LIMIT} of a manifest")
            data = b"".join(self._archive.pieces(MANIFEST))
        self.digest = hashlib.sha256(data).hexdigest()
        if expect is not None:
            self.require(expect)
        with about(self.name, MANIFEST):
            self.manifest = parse_manifest(data)
            self._check_list()
        for name, record in self.manifest.files.items():
            with about(self.name, name):
                if sizes[name] != record.bytes:
                    raise Refused(f"has {sizes[name]} bytes, the manifest says {record.bytes}: copy it again")
        mapped = self._check_files()
        with about(self.name, WEIGHTS):
            # From the mapped file, because its content was hashed and will be used.
            self._places = {} if mapped is None else parse_header(_taken_from(mapped), mapped.size)
            found = {} if mapped is None else views(mapped, self._places)
            self.weights: Mapping[str, np.ndarray] = MappingProxyType(found)
        self._needed: list[tuple[str, ...]] = []
        for index, segment in enumerate(self.manifest.segments):
            with about(self.name, segment.graph):
                if sizes[segment.graph] > GRAPH_LIMIT:
                    raise Refused(f"has {sizes[segment.graph]} bytes, more than the {GRAPH_LIMIT} of a graph")
                self._needed.append(check_graph(self.graph(index), segment, self._places))

    def _check_list(self) -> None:
        listed, there = set(self.manifest.files), set(self._archive.sizes)
        check_names(sorted(listed))
        if MANIFEST in listed:
            raise Refused("lists itself")
        for name in sorted(listed - there):
            raise Refused(f"lists {name}, which the bundle does not hold: copy the bundle again")
        for name in sorted(there - listed - {MANIFEST}):
            raise Refused(f"does not list {name}, which is in the bundle: remove it, or export again")
        if self._archive.folders:
            raise Refused(f"lists nothing in the folder {shown(self._archive.folders[0])}: remove it")
        for segment in self.manifest.segments:
            if segment.graph.rpartition("/")[0] != WEIGHTS.rpartition("/")[0]:
                raise Refused(f"has the graph {segment.graph}, which does not lie beside {WEIGHTS}")

    def _check_files(self) -> np.ndarray | None:
        """Compare all hashes; the weights' with what is mapped, so that it is the same bytes that are used."""
        mapped = None
        for name, record in self.manifest.files.items():
            with about(self.name, name):
                pieces: Iterable[bytes | memoryview] = self._archive.pieces(name)
                if name == WEIGHTS:
                    mapped = self._archive.map(name)
                    pieces = (mapped[start : start + PIECE].data for start in range(0, mapped.size, PIECE))
                digest = hashlib.sha256()
                for piece in pieces:
                    digest.update(piece)
                if digest.hexdigest() != record.sha256:
                    raise Refused("does not have the SHA-256 that the manifest names: it is damaged or was changed")
                if name.endswith(".safetensors") and name != WEIGHTS:
                    parse_header(partial(self._archive.read, name), record.bytes)
        return mapped


def describe(bundle: Bundle) -> dict[str, Any]:
    """All that a bundle says about itself, ready for JSON: its manifest, and what its parts weigh.

    `parameters` and `bytes` of a segment are those of the weights that its graph needs. Weights that several
    segments share are in each of them, and once in the total.
    """
    manifest = bundle.manifest.model_dump(mode="json", exclude={"manifest_sha256"})
    for index, segment in enumerate(manifest["segments"]):
        arrays = bundle.weights_of(index).values()
        segment["parameters"] = sum(array.size for array in arrays)
        segment["bytes"] = sum(array.nbytes for array in arrays)
        segment["graph_bytes"] = bundle.sizes[segment["graph"]]
    return {
        "path": bundle.name,
        "sha256": bundle.digest,
        "bytes": sum(bundle.sizes.values()),
        "parameters": sum(array.size for array in bundle.weights.values()),
        "weights_bytes": sum(array.nbytes for array in bundle.weights.values()),
        **manifest,
    }


def segments_of(described: Mapping[str, Any], title: str) -> Table:
    """The segments of a bundle that is described, with what their certificate says."""
    from reservoir_hw.tasks.task import Table

    certified = {one["segment"]: one for one in described["certificate"]["segments"]}
    rows = []
    for index, segment in enumerate(described["segments"]):
        one = certified.get(index)
        rows.append(
            [
                str(index),
                ", ".join(value_text(value) for value in segment["reads"]),
                ", ".join(value_text(value) for value in segment["gives"]),
                f"{segment['parameters']:,}",
                size_text(segment["bytes"]),
                size_text(segment["graph_bytes"]),
                "" if one is None else f"{one['error']:.2g}",
                "" if one is None or one["limit"] is None else f"{one['limit']:.2g}",
            ]
        )
    header = ["segment", "reads", "gives", "parameters", "weights", "graph", "error", "limit"]
    note = (
        "error: between graph and model when the bundle was made, over all inputs that were tried, in standard "
        "deviations of the output."
    )
    return Table(title, header, rows, note)


def value_text(value: Mapping[str, Any]) -> str:
    """Name and shape of what a graph reads or gives."""
    shape = " × ".join(map(str, value["shape"]))
    return f"{value['name']}{f' ({shape})' if shape else ''}"


def size_text(count: int) -> str:
    """So many bytes, for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def _taken_from(data: np.ndarray) -> Callable[[int, int], bytes]:
    return lambda start, size: data[start : start + size].tobytes()


# ---- What differs between two bundles.


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
    same_weights: int

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
        sides = zip(_compared(first), _compared(second), strict=True)
        fields, files, prints = (_fields(ours, theirs) for ours, theirs in sides)
        return Difference(first.name, second.name, fields, files, prints, *_weights(first.weights, second.weights))


def _compared(bundle: Bundle) -> tuple[dict[str, Any], ...]:
    """Of a manifest the settings by their places, the hashes by file, and the fingerprints by slot."""
    # Its own hash differs where anything does.
    facts = bundle.manifest.model_dump(mode="json", exclude={"manifest_sha256"})
    files = {name: record["sha256"] for name, record in facts.pop("files").items()}
    prints = {f"slot {index}": slot.pop("fingerprint") for index, slot in enumerate(facts["slots"])}
    return _flat(facts), files, prints


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    """A leaf by its place: `segments.0.reads.1.name`."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: dict[str, Any] = {}
    for key, child in children:
        found |= _flat(child, f"{at}.{key}" if at else str(key))
    return found or {at: value}


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
        else:
            found.append(WeightDifference(name, *kinds, largest, largest / scale if scale else float("inf")))
    return tuple(found), same


def _distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """max|a − b| and max|a|, in pieces; infinity where only one of two numbers is finite."""
    largest = scale = 0.0
    for start in range(0, a.size, PIECE):
        ours, theirs = a[start : start + PIECE].astype(np.float64), b[start : start + PIECE].astype(np.float64)
        equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            apart = np.where(equal, 0.0, np.abs(ours - theirs))
        largest = max(largest, float(np.where(np.isnan(apart), np.inf, apart).max()))
        scale = max(scale, float(np.abs(ours[np.isfinite(ours)]).max(initial=0.0)))
    return largest, scale


def _kind(array: np.ndarray | None) -> str | None:
    return None if array is None else f"{array.dtype} {' × '.join(map(str, array.shape)) or 'scalar'}"
