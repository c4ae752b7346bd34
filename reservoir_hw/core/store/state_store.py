"""A store of states: made and opened as a whole, filled chunk by chunk, and counted by its journal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.files import settle_folder
from reservoir_hw.core.locks import owned
from reservoir_hw.core.provenance import plain
from reservoir_hw.core.store.dataset import (
    BROKEN,
    NO_STORE,
    UNFINISHED,
    Dataset,
    Home,
    codecs,
    create_coordinates,
    create_timing,
    harmed,
    not_a_store,
    origin,
    readable,
)

FORMAT = "reservoir_hw.states"
VERSION = 1

# What the codecs take.
_MOST_CHUNK_BYTES = (1 << 31) - 1
_RESERVED = {"journal", "snapshots", "zarr.json"}


class StateStore:
    """A folder (or any address that fsspec knows) with states that outlive the process that gathered them.

    Written chunk by chunk; what `commit` has counted is whole and stays valid whatever happens afterwards, and
    can be read meanwhile by others. Make one with `create`, open one with `open`.
    """

    def __init__(self, path: str, root: Any) -> None:
        self._home = home = Home(path, root)
        self.path, self._root, self._journal, self._local = path, root, home.journal, home.folder

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {dataset.states.shape}" for name, dataset in self.datasets.items())
        return f"<StateStore {self.path}: {'complete' if self.complete else 'unfinished'}, {shapes or 'empty'}>"

    @classmethod
    def create(
        cls, path: str | Path, facts: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Self:
        """A new store with these data sets, each described as for `add`; `facts` are kept as its attributes.

        It appears at `path` as a whole, or not at all. Raises `ConfigurationError` if there is something at `path`
        already, or nothing can be made there.
        """
        path, zarr = plain_path(path), _zarr()
        local = None if "://" in path else Path(path)
        taken = f"{path} exists already; name another place, or remove it first"
        try:
            if cls.exists(path) or (local is not None and os.path.lexists(local)):
                raise ConfigurationError(taken)
            if local is None:
                return cls._make(path, facts, datasets or {})
            with _making(local) as place:
                cls._make(str(place), facts, datasets or {})
                os.rename(place, local)
            settle_folder(local.parent)
        except (zarr.errors.ContainsGroupError, zarr.errors.ContainsArrayError) as error:
            raise ConfigurationError(taken) from error
        except (OSError, ImportError) as error:
            raise ConfigurationError(
                f"{path} cannot be written: {getattr(origin(error), 'strerror', None) or error}; name another place"
            ) from error
        return cls.open(path, writable=True)

    @classmethod
    def _make(cls, path: str, facts: Mapping[str, Any], datasets: Mapping[str, Mapping[str, Any]]) -> Self:
        root = _zarr().create_group(
            _target(path), zarr_format=3, attributes=plain({**facts, "format": FORMAT, "version": VERSION})
        )
        root.create_group("journal", attributes={"places": 0, "complete": False, "snapshot": None, "segments": []})
        root.create_group("snapshots")
        store = cls(path, root)
        for name, layout in datasets.items():
            store.add(name, **layout)
        return store

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> Self:
        """An existing store. Raises `ConfigurationError` for anything else."""
        path = plain_path(path)
        zarr = _zarr()
        if "://" not in path and not os.path.isdir(path):
            raise ConfigurationError(not_a_store(path, FileNotFoundError(path)))
        try:
            root = zarr.open_group(_target(path), mode="r+" if writable else "r", zarr_format=3)
        except (*BROKEN, ImportError) as error:
            raise ConfigurationError(not_a_store(path, error)) from error
        if root.attrs.get("format") != FORMAT:
            raise ConfigurationError(f"{path} {NO_STORE}: it is another Zarr group")
        if root.attrs.get("version") != VERSION:
            raise ConfigurationError(
                f"{path} has the format version {root.attrs.get('version')}, this program reads version {VERSION}"
            )
        with readable(path, "its journal"):
            store = cls(path, root)
            _check_journal(store._journal.attrs)
        return store

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a store at `path`, damaged or not. For a folder this does without Zarr.

        Raises `ConfigurationError` if it may not be looked at.
        """
        path = plain_path(path)
        zarr = _zarr() if "://" in path else None
        try:
            if zarr is None:
                return stat.S_ISDIR(os.stat(os.path.join(path, "journal")).st_mode)
            return zarr.open_group(path, mode="r", zarr_format=3).attrs.get("format") == FORMAT
        except (PermissionError, ImportError) as error:
            raise ConfigurationError(not_a_store(path, error)) from error
        except BROKEN:
            return False

    @property
    def facts(self) -> dict[str, Any]:
        """What `create` was given, with `format` and `version`."""
        return dict(self._root.attrs)

    @property
    def datasets(self) -> dict[str, Dataset]:
        """All data sets by name, in the order of their names, numbers by their value."""
        with readable(self.path, "the list of its data sets"):
            names = [name for name in self._groups() if name not in _RESERVED and not name.endswith(UNFINISHED)]
        names.sort(key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in name.split(".")])
        found = {}
        for name in names:
            with readable(self.path, f"the data set {name}"):
                found[name] = Dataset(self._root[name], self._home)
        return found

    def _groups(self) -> list[str]:
        """Names of what is in the store, that of a data set without its zarr.json too."""
        if self._local is not None:
            # Those that are being made get their names when they are whole.
            made = [one for one in os.scandir(self._local) if one.is_dir() and not one.name.endswith(UNFINISHED)]
            return [one.name for one in made if {"zarr.json", "states"} & set(os.listdir(one))]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Object at .* is not recognized")
            return list(self._root.group_keys())

    def dataset(self, name: str) -> Dataset:
        """One of them, or a `ConfigurationError` that lists what there is."""
        datasets = self.datasets
        if name not in datasets:
            raise ConfigurationError(f"{self.path} has no data set {name!r}; there are: {', '.join(datasets)}")
        return datasets[name]

    def add(
        self,
        name: str,
        *,
        sequences: int,
        inputs: int,
        nodes: int,
        chunk_steps: int,
        steps: int = 0,
        group: int | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        facts: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """A new data set; its time axis has `steps` steps and grows when more is written.

        Units and coordinates, for readers such as xarray, are those of the `spec` that the store was created with.
        `facts` are kept as its attributes; `from_rest: false` says that its sequences do not begin at rest.
        """
        self._home.refuse_if_reading()
        if not _is_name(name):
            raise ConfigurationError(f"{name!r} cannot be the name of a data set")
        if name in self._root if self._local is None else os.path.lexists(self._local / name):
            raise ConfigurationError(f"{self.path} has a data set {name!r} already")
        group = group or sequences
        if group * chunk_steps * max(inputs, nodes) * np.dtype(dtype).itemsize > _MOST_CHUNK_BYTES:
            raise ConfigurationError(
                f"{self.path}: {chunk_steps} steps of {group} sequences with {inputs} inputs and {nodes} nodes are "
                "more than 2 GB, too much for one chunk; give a smaller `run.chunk_steps`"
            )
        # In a folder it appears as a whole, or not at all.
        unfinished = name if self._local is None else f"{name}{UNFINISHED}"
        with self._home.writing():
            try:
                made = self._root.create_group(unfinished, overwrite=unfinished != name, attributes=plain(facts or {}))
                spec = self._home.spec
                for array, width, axis, unit in (
                    ("inputs", inputs, "channel", "input_unit"), ("states", nodes, "node", "state_unit"),
                ):  # fmt: skip
                    made.create_array(
                        array,
                        shape=(sequences, steps, width),
                        chunks=(group, chunk_steps, width),
                        dtype=dtype,
                        fill_value=float("nan"),
                        compressors=codecs(),
                        dimension_names=("sequence", "step", axis),
                        attributes={"units": spec.get(unit, "1")},
                    )
                create_coordinates(made, spec, steps, sequences=sequences, inputs=inputs, nodes=nodes)
                create_timing(made, -(-sequences // group), -(-steps // chunk_steps))
                if self._local is None:
                    return Dataset(made, self._home)
                os.rename(self._local / unfinished, self._local / name)
            except BaseException:
                if self._local is not None:
                    shutil.rmtree(self._local / unfinished, ignore_errors=True)
                raise
            settle_folder(self._local)
            return Dataset(self._root[name], self._home)

    # ---- how far it is

    @property
    def committed(self) -> int:
        """How many places of the plan that fills the store are valid."""
        return int(self._journal.attrs["places"])

    @property
    def complete(self) -> bool:
        """Whether the whole plan is."""
        return bool(self._journal.attrs["complete"])

    @property
    def segments(self) -> list[dict[str, Any]]:
        """One record for each process that wrote, in order; a seam in the data is noted in the later one."""
        return list(self._journal.attrs["segments"])

    def commit(
        self,
        places: int,
        *,
        snapshot: Mapping[str, np.ndarray] | None = None,
        segments: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Count what was written so far as valid, with the state of the device there.

        A crash leaves either what counted before or what counts now.
        """
        changes: dict[str, Any] = {"places": places, "complete": False, "snapshot": None}
        if segments is not None:
            changes["segments"] = list(segments)
        with self._home.writing():
            if snapshot is not None:
                slot = "b" if self._journal.attrs["snapshot"] == "a" else "a"
                self._write_snapshot(slot, snapshot, places)
                changes["snapshot"] = slot
            self._note(changes)

    def close_segment(self, segments: Sequence[Mapping[str, Any]], *, complete: bool) -> None:
        """Note how a process ended, and whether the whole plan is there."""
        with self._home.writing():
            self._note({"segments": list(segments), "complete": complete})

    def snapshot(self) -> dict[str, np.ndarray] | None:
        """The state of the device at the last commit, or None where it could not tell.

        Raises `ConfigurationError` if it is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        slot = self._journal.attrs["snapshot"]
        if slot is None:
            return None
        with readable(self.path, "the last snapshot", SafetensorError):
            data = self._root[f"snapshots/{slot}"][:].tobytes()
            told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {}).get("places")
            if told != str(self.committed):
                raise ValueError(f"it belongs to place {told}, not {self.committed}")
            return load(data)

    def remove_leftovers(self) -> None:
        """Remove half-written files of a process that died; only while nobody else writes."""
        with self._home.writing():
            for leftover in [] if self._local is None else list(self._local.rglob(f"*{UNFINISHED}")):
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink(missing_ok=True)

    def _note(self, changes: Mapping[str, Any]) -> None:
        # Not attrs.update, which writes the file once for each key: a crash would find half of the changes.
        self._journal.update_attributes(plain(changes))

    def _write_snapshot(self, slot: str, snapshot: Mapping[str, np.ndarray], places: int) -> None:
        from safetensors.numpy import save
        from zarr.codecs import Crc32cCodec

        arrays = {name: np.ascontiguousarray(array) for name, array in snapshot.items()}
        # An old snapshot in the place of the last one must be told from it.
        data = np.frombuffer(save(arrays, {"places": str(places)}), np.uint8)
        try:
            group = self._root["snapshots"]
        except BROKEN as error:
            # Its description is the same in every store, so it does not matter if it was damaged.
            if not harmed(error):
                raise
            self._home.remove("snapshots/zarr.json")
            group = self._root.create_group("snapshots")
        codec = [Crc32cCodec()]
        group.create_array(slot, data=data, overwrite=True, compressors=codec, dimension_names=(f"byte_of_{slot}",))


def plain_path(path: str | Path) -> str:
    """A path or an address as text; a `file://` address as the path that it is."""
    return str(path).removeprefix("file://")


def _check_journal(journal: Mapping[str, Any]) -> None:
    """Raise `ValueError` or `KeyError` where a value cannot be."""
    places, segments = journal["places"], journal["segments"]
    if type(places) is not int or places < 0:
        raise ValueError(f"places is {places!r}")
    if type(journal["complete"]) is not bool:
        raise ValueError(f"complete is {journal['complete']!r}")
    if journal["snapshot"] not in (None, "a", "b"):
        raise ValueError(f"snapshot is {journal['snapshot']!r}")
    if not isinstance(segments, list) or not all(isinstance(segment, dict) for segment in segments):
        raise ValueError("segments is no list of records")


def _is_name(name: str) -> bool:
    # Zarr keeps names that begin with two underscores for itself.
    return (
        0 < len(name.encode()) <= 200
        and not name.startswith((".", "__"))
        and not set(name) & set("/\\\0")
        and name not in _RESERVED
        and not name.endswith(UNFINISHED)
    )


@contextlib.contextmanager
def _making(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path`, in which this process alone makes what will be there.

    What processes have left that died meanwhile is removed; it can be told by its name.
    """
    with owned(f"new store {os.path.realpath(path)}", f"{path} is being made by another process"):
        if path.parent.is_dir():
            for name in os.listdir(path.parent):
                if re.fullmatch(rf"\.{re.escape(path.name)}\.[0-9a-f]{{32}}\.making", name):
                    shutil.rmtree(path.parent / name, ignore_errors=True)
        place = path.with_name(f".{path.name}.{uuid.uuid4().hex}.making")
        try:
            yield place
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _target(path: str) -> Any:
    """What Zarr is to read and write: a folder whose files survive a power failure, or an address."""
    if "://" in path:
        return path
    from reservoir_hw.core.store.durable import DurableStore

    return DurableStore(path)


def _zarr() -> Any:
    with extra("store", "stores of states need zarr"):
        import zarr
    return zarr
