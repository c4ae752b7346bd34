"""States on disk: what a harvest gathered, a run recorded or an import converted, as a Zarr v3 group.

    STORE/                       attributes: format, version, what wrote it, spec, provenance
      journal/                   attributes: how much is valid, which snapshot goes with it, segments
      snapshots/a, b             the last two states of the device, safetensors in a row of bytes
      NAME/inputs                (sequences, time, inputs)
      NAME/states                (sequences, time, nodes), row t the response to row t of the inputs
      NAME/timing                (groups, chunks, 2): when a chunk was driven (seconds since 1970) and for how long

Any Zarr reader understands the arrays. A step that was never written reads as NaN.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import stat
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, MissingExtra, ShapeError
from reservoir_hw.core.hostlock import HostLock
from reservoir_hw.core.provenance import plain

log = logging.getLogger(__name__)

FORMAT = "reservoir_hw.states"
VERSION = 1

# What the codecs take.
_MOST_CHUNK_BYTES = (1 << 31) - 1
_RESERVED = {"journal", "snapshots", "zarr.json"}
_UNFINISHED = ".partial"
# The attribute of times some of which were damaged.
_GIVEN_UP = "given_up"
# What Zarr and its codecs raise where a file is damaged: a single bit makes any of these.
_BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_NO_STORE = "is not a store of states, as `run.record`, `reservoir-hw harvest` and `reservoir-hw trace import` make it"


@dataclass(frozen=True)
class Place:
    """Some consecutive steps of some sequences: `rows` start..stop of the sequences, steps start..stop."""

    rows: slice
    start: int
    stop: int


class Dataset:
    """Sequences that were driven alike: inputs and states side by side.

    `inputs` and `states` are Zarr arrays (sequences, time, ·): slices of them are read from the disk as numpy
    arrays. States are written in chunks of `chunk_steps` steps of `group` sequences.
    """

    def __init__(self, group: Any, store: StateStore) -> None:
        self._group = group
        self._store = store
        # In the opposite order of that in which a writer lets them grow; times, which are no states, when asked for.
        self.states: Any = group["states"]
        self.inputs: Any = group["inputs"]
        self._times: Any = None

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._group.basename

    @property
    def sequences(self) -> int:
        """How many sequences."""
        return self.states.shape[0]

    @property
    def steps(self) -> int:
        """Length in time."""
        return self.states.shape[1]

    @property
    def group(self) -> int:
        """Sequences in one chunk."""
        return self.states.chunks[0]

    @property
    def chunk_steps(self) -> int:
        """Steps in one chunk."""
        return self.states.chunks[1]

    @property
    def facts(self) -> dict[str, Any]:
        """What was noted about this data set when it was made."""
        return dict(self._group.attrs)

    @property
    def timing(self) -> np.ndarray:
        """(groups, chunks, 2): start in seconds since 1970, duration in seconds; NaN where it is not known.

        Raises `ConfigurationError` if they are damaged.
        """
        found = np.full((*self._chunks(self.steps), 2), np.nan)
        try:
            # A process that grew the time axis and died may have left fewer or more.
            times = self._timing()[: found.shape[0], : found.shape[1]]
        except _BROKEN as error:
            raise _unreadable(self._store.path, f"times of {self.name}", error) from error
        found[: times.shape[0], : times.shape[1]] = times
        return found

    @property
    def times_given_up(self) -> str | None:
        """What was wrong with times that were given up when more was written, None if none were."""
        try:
            return self._timing().attrs.get(_GIVEN_UP)
        except _BROKEN as error:
            raise _unreadable(self._store.path, f"times of {self.name}", error) from error

    def places(self) -> Iterator[Place]:
        """All chunks, group after group."""
        for first in range(0, self.sequences, self.group):
            rows = slice(first, min(first + self.group, self.sequences))
            for start in range(0, self.steps, self.chunk_steps):
                yield Place(rows, start, min(start + self.chunk_steps, self.steps))

    def read(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and states there.

        Raises `ConfigurationError` where they were never written, or the file is damaged.
        """
        return self.read_inputs(place.rows, place.start, place.stop), self.read_states(place)

    def read_states(self, place: Place) -> np.ndarray:
        """As `read`, the states alone."""
        states = self._read(self.states, place.rows, place.start, place.stop)
        # A single node may well be NaN.
        missing = np.isnan(states[:, -1]).all(axis=-1) if states.size else np.zeros(0, bool)
        if missing.any():
            row = int(missing.argmax())
            start = place.start + int(np.isnan(states[row]).all(axis=-1).argmax())
            raise ConfigurationError(
                f"{self._store.path}: {self.name}, steps {start} to {place.stop - 1} of sequence "
                f"{place.rows.start + row} were never harvested"
            )
        return states

    def read_inputs(self, rows: slice, start: int, stop: int) -> np.ndarray:
        """Inputs alone, NaN where nothing was written.

        Raises `ConfigurationError` if a file is damaged, or lost.
        """
        inputs = self._read(self.inputs, rows, start, stop)
        if self._lost(inputs, rows, start) is not None:
            # They may have been written just now. Inputs come before states, so those of these states are there.
            inputs = self._read(self.inputs, rows, start, stop)
            lost = self._lost(inputs, rows, start)
            if lost is not None:
                raise ConfigurationError(
                    f"{self._store.path}: inputs of {self.name}, steps {lost.start} to {lost.stop - 1} of sequence "
                    f"{lost.rows.start}: they were written, and are not there any more: a file was lost"
                )
        return inputs

    def _lost(self, inputs: np.ndarray, rows: slice, start: int) -> Place | None:
        """The first part of what was read as `inputs` that is missing, although it was written once.

        Costs little: states that were never written have no file.
        """
        missing = np.asarray(np.isnan(inputs).any(axis=2))
        if not missing.any():
            return None
        group, size = self.group, self.chunk_steps
        for first in range(rows.start - rows.start % group, rows.stop, group):
            for begin in range(start - start % size, start + missing.shape[1], size):
                row, step = max(first, rows.start), max(begin, start)
                part = missing[row - rows.start : first + group - rows.start, step - start : begin + size - start]
                if not part.any():
                    continue
                row, at = (int(offset) for offset in np.argwhere(part)[0] + (row, step))
                states = self._read(self.states, slice(row, row + 1), at, at + 1)
                if self._store.complete or not np.isnan(states).all():
                    return Place(slice(row, row + 1), at, min(begin + size, start + missing.shape[1]))
        return None

    def file_of(self, place: Place, array: str) -> str:
        """Where the chunk of `inputs` or `states` lies."""
        group, chunk = self._chunk_of(place)
        return f"{self._store.path}/{self.name}/{array}/c/{group}/{chunk}/0"

    def _read(self, array: Any, rows: slice, start: int, stop: int) -> np.ndarray:
        try:
            return array[rows, start:stop]
        except _BROKEN as error:
            why = ": the file is damaged" if _harmed(error) else _leave(error)
            raise ConfigurationError(
                f"{self._store.path}: {array.basename} of {self.name}, steps {start} to {stop - 1} of sequence "
                f"{rows.start}: cannot be read ({_brief(error)}){why}"
            ) from error

    def erase(self, place: Place) -> None:
        """Make one chunk unwritten again. It must not count any more."""
        at = (place.rows, slice(place.start, place.stop))
        with self._store.writing():
            self._forget(place)
            for array in (self.states, self.inputs):
                array[at] = np.nan
            self._note_time(place, (np.nan, np.nan))

    def is_written(self, place: Place) -> bool:
        """Whether there are states, whether or not they count; damaged ones are."""
        try:
            return not np.isnan(self.states[place.rows.start, place.stop - 1]).all()
        except _BROKEN:
            return True

    def write(self, place: Place, inputs: np.ndarray, states: np.ndarray, *, timing: tuple[float, float]) -> None:
        """Write one chunk, the time axis growing if need be.

        `timing` is when it was driven, in seconds since 1970, and for how long. Counts once it is committed.
        Raises `OSError` if the disk is full, or nothing may be written.
        """
        self._store.refuse_if_reading()
        if place.start % self.chunk_steps or place.stop - place.start > self.chunk_steps:
            raise ShapeError(f"steps {place.start} to {place.stop} are not one chunk of {self.chunk_steps} steps")
        if place.rows.start % self.group or place.rows.stop != min(place.rows.start + self.group, self.sequences):
            raise ShapeError(f"sequences {place.rows.start} to {place.rows.stop} are not one group of {self.group}")
        at = (place.rows, slice(place.start, place.stop))
        with self._store.writing():
            if place.stop > self.steps:
                # States last: whoever reads meanwhile, or after a crash here, finds times and inputs for all of them.
                self._timing_for(place.stop)
                for array in (self.inputs, self.states):
                    if array.shape[1] < place.stop:
                        array.resize((array.shape[0], place.stop, array.shape[2]))
            self._forget(place)
            self.inputs[at] = inputs
            self.states[at] = states
            self._note_time(place, timing)

    def _note_time(self, place: Place, timing: tuple[float, float]) -> None:
        group, chunk = self._chunk_of(place)
        times = self._timing_for(self.steps)
        try:
            times[group, chunk] = timing
        except (ValueError, RuntimeError) as error:
            if not _harmed(error):
                raise
            # Times are no states: those around this one are given up; at an address, all of them.
            if "://" in self._store.path:
                times = self._new_timing(error, *times.shape[:2])
            elif self._store.remove(f"{self.name}/timing/c/{group}/{chunk // times.chunks[1]}/0"):
                times = self._times = times.update_attributes(self._given_up(error))
            else:
                raise
            times[group, chunk] = timing

    def _timing(self) -> Any:
        if self._times is None:
            self._times = self._group["timing"]
        return self._times

    def _timing_for(self, steps: int) -> Any:
        """The array of times, of so many steps at least; a new one if it is damaged."""
        groups, chunks = self._chunks(steps)
        try:
            times = self._timing()
        except _BROKEN as error:
            if not _harmed(error):
                raise
            times = self._new_timing(error, groups, chunks)
        if times.shape[1] < chunks:
            times.resize((groups, chunks, 2))
        return times

    def _new_timing(self, error: Exception, groups: int, chunks: int) -> Any:
        self._times = _create_timing(self._group, groups, chunks, attributes=self._given_up(error), overwrite=True)
        return self._times

    def _given_up(self, error: Exception) -> dict[str, str]:
        """What is noted with times some of which are not known any more."""
        log.warning(
            "%s: times of %s were damaged (%s) and are not known any more", self._store.path, self.name, _brief(error)
        )
        return {_GIVEN_UP: _brief(error)}

    def _chunks(self, steps: int) -> tuple[int, int]:
        return -(-self.sequences // self.group), -(-steps // self.chunk_steps)

    def _forget(self, place: Place) -> None:
        """Remove the files of a chunk: one that is damaged could not be written over in part."""
        group, chunk = self._chunk_of(place)
        # States without inputs would pass for damage.
        for array in (self.states, self.inputs):
            self._store.remove(f"{self.name}/{array.basename}/c/{group}/{chunk}/0")

    def _chunk_of(self, place: Place) -> tuple[int, int]:
        return place.rows.start // self.group, place.start // self.chunk_steps


class StateStore:
    """A folder (or any address that fsspec knows) with states that outlive the process that gathered them.

    Written chunk by chunk; what `commit` has counted is whole and stays valid whatever happens afterwards, and
    can be read meanwhile by others. Make one with `create`, open one with `open`.
    """

    def __init__(self, path: str, root: Any) -> None:
        self.path = path
        self._root = root
        self._journal = root["journal"]
        self._local = None if "://" in path else Path(path)

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
            from reservoir_hw.core.durable_store import settle_folder

            with _making(local) as place:
                cls._make(str(place), facts, datasets or {})
                os.rename(place, local)
            settle_folder(local.parent)
        except (zarr.errors.ContainsGroupError, zarr.errors.ContainsArrayError) as error:
            raise ConfigurationError(taken) from error
        except (OSError, ImportError) as error:
            raise ConfigurationError(
                f"{path} cannot be written: {getattr(_origin(error), 'strerror', None) or error}; name another place"
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
            raise ConfigurationError(_not_a_store(path, FileNotFoundError(path)))
        try:
            root = zarr.open_group(_target(path), mode="r+" if writable else "r", zarr_format=3)
        except (*_BROKEN, ImportError) as error:
            raise ConfigurationError(_not_a_store(path, error)) from error
        if root.attrs.get("format") != FORMAT:
            raise ConfigurationError(f"{path} {_NO_STORE}: it is another Zarr group")
        if root.attrs.get("version") != VERSION:
            raise ConfigurationError(
                f"{path} has the format version {root.attrs.get('version')}, this program reads version {VERSION}"
            )
        try:
            store = cls(path, root)
            _check_journal(store._journal.attrs)
        except _BROKEN as error:
            raise _unreadable(path, "its journal", error) from error
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
            raise ConfigurationError(_not_a_store(path, error)) from error
        except _BROKEN:
            return False

    @property
    def facts(self) -> dict[str, Any]:
        """What `create` was given, with `format` and `version`."""
        return dict(self._root.attrs)

    @property
    def datasets(self) -> dict[str, Dataset]:
        """All data sets by name, in the order of their names, numbers by their value."""
        try:
            names = [name for name in self._groups() if name not in _RESERVED and not name.endswith(_UNFINISHED)]
        except _BROKEN as error:
            raise _unreadable(self.path, "the list of its data sets", error) from error
        names.sort(key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in name.split(".")])
        found = {}
        for name in names:
            try:
                found[name] = Dataset(self._root[name], self)
            except _BROKEN as error:
                raise _unreadable(self.path, f"the data set {name}", error) from error
        return found

    def _groups(self) -> list[str]:
        """Names of what is in the store, that of a data set without its zarr.json too."""
        if self._local is not None:
            folders = [entry.name for entry in os.scandir(self._local) if entry.is_dir()]
            # Those that are being made get their names when they are whole.
            named = [name for name in folders if not name.endswith(".partial")]
            return [name for name in named if {"zarr.json", "states"} & set(os.listdir(self._local / name))]
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

        `facts` are kept as its attributes; `from_rest: false` says that its sequences do not begin at rest.
        """
        self.refuse_if_reading()
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
        with self.writing():
            return self._add(
                name, sequences, steps, {"inputs": inputs, "states": nodes}, chunk_steps, group, dtype, facts
            )

    def _add(
        self,
        name: str,
        sequences: int,
        steps: int,
        widths: Mapping[str, int],
        chunk_steps: int,
        group: int,
        dtype: str,
        facts: Mapping[str, Any] | None,
    ) -> Dataset:
        from zarr.codecs import BloscCodec, Crc32cCodec

        # The checksum makes a damaged file an error instead of wrong states.
        codecs = [BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()]
        # In a folder it appears as a whole, or not at all.
        unfinished = name if self._local is None else f"{name}{_UNFINISHED}"
        try:
            made = self._root.create_group(unfinished, overwrite=unfinished != name, attributes=plain(facts or {}))
            for array, width in widths.items():
                made.create_array(
                    array,
                    shape=(sequences, steps, width),
                    chunks=(group, chunk_steps, width),
                    dtype=dtype,
                    fill_value=float("nan"),
                    compressors=codecs,
                    dimension_names=("sequence", "step", "channel" if array == "inputs" else "node"),
                )
            _create_timing(made, -(-sequences // group), -(-steps // chunk_steps))
            if self._local is None:
                return Dataset(made, self)
            os.rename(self._local / unfinished, self._local / name)
        except BaseException:
            if self._local is not None:
                shutil.rmtree(self._local / unfinished, ignore_errors=True)
            raise
        from reservoir_hw.core.durable_store import settle_folder

        settle_folder(self._local)
        return Dataset(self._root[name], self)

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
        with self.writing():
            if snapshot is not None:
                slot = "b" if self._journal.attrs["snapshot"] == "a" else "a"
                self._write_snapshot(slot, snapshot, places)
                changes["snapshot"] = slot
            self._note(changes)

    def close_segment(self, segments: Sequence[Mapping[str, Any]], *, complete: bool) -> None:
        """Note how a process ended, and whether the whole plan is there."""
        with self.writing():
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
        try:
            data = self._root[f"snapshots/{slot}"][:].tobytes()
            told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {}).get("places")
            # Stores of earlier versions do not tell.
            if told is not None and int(told) != self.committed:
                raise ValueError(f"it belongs to place {told}, not {self.committed}")
            return load(data)
        except (*_BROKEN, SafetensorError) as error:
            raise _unreadable(self.path, "the last snapshot", error) from error

    def remove_leftovers(self) -> None:
        """Remove half-written files of a process that died; only while nobody else writes."""
        with self.writing():
            for leftover in [] if self._local is None else list(self._local.rglob(f"*{_UNFINISHED}")):
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink(missing_ok=True)

    def remove(self, name: str) -> bool:
        """Remove a file of the store, if that is a folder and the file there; whether it was."""
        if self._local is not None and (self._local / name).exists():
            self.refuse_if_reading()
            from reservoir_hw.core.durable_store import settle_folder

            (self._local / name).unlink()
            settle_folder((self._local / name).parent)
            return True
        return False

    def refuse_if_reading(self) -> None:
        """Raise `ConfigurationError` if the store was not opened to be written."""
        if self._root.store.read_only:
            raise ConfigurationError(f"{self.path} was opened to be read: open it with writable=True")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Where something of the store is changed: errors of the disk name the store, and say what to do."""
        self.refuse_if_reading()
        try:
            yield
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            said = f"{self.path} cannot be written: {error.strerror or error}{where}{_leave(error)}"
            raise (OSError(said) if error.errno is None else OSError(error.errno, said)) from error

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
        except _BROKEN as error:
            # Its description is the same in every store, so it does not matter if it was damaged.
            if not _harmed(error):
                raise
            self.remove("snapshots/zarr.json")
            group = self._root.create_group("snapshots")
        group.create_array(slot, data=data, overwrite=True, compressors=[Crc32cCodec()])


def plain_path(path: str | Path) -> str:
    """A path or an address as text; a `file://` address as the path that it is."""
    return str(path).removeprefix("file://")


def is_damage(error: ConfigurationError) -> bool:
    """Whether something of a store is damaged or lost; it may also be that it cannot be read now, or by this user."""
    return error.__cause__ is None or _harmed(error.__cause__)


def _harmed(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return isinstance(error, FileNotFoundError)
    # "can't start new thread" and "cannot schedule new futures" are troubles of this process, not of a file.
    return not (isinstance(error, RuntimeError) and re.search("new (thread|futures)", str(error)))


def _origin(error: Exception) -> BaseException:
    return error.__cause__ if isinstance(error.__cause__, OSError) else error


def _unreadable(path: str, what: str, error: Exception) -> ConfigurationError:
    if _harmed(error):
        return ConfigurationError(f"{path} is damaged: {what} cannot be read ({_brief(error)})")
    return ConfigurationError(f"{path}: {what} cannot be read ({_brief(error)}){_leave(error)}")


def _brief(error: Exception) -> str:
    """One line; some errors carry the whole file."""
    if isinstance(error, UnicodeDecodeError):
        return f"{error.reason} at byte {error.start}"
    text = " ".join(str(error).split())
    if not isinstance(error, OSError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _leave(error: Exception) -> str:
    return "; ask its owner to let you read and write it" if isinstance(error, PermissionError) else ""


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
        and not name.endswith(_UNFINISHED)
    )


def _create_timing(
    group: Any, groups: int, chunks: int, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
) -> Any:
    from zarr.codecs import BloscCodec, Crc32cCodec

    return group.create_array(
        "timing",
        shape=(groups, chunks, 2),
        chunks=(1, 1024, 2),
        dtype="float64",
        fill_value=float("nan"),
        compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()],
        attributes=None if attributes is None else dict(attributes),
        overwrite=overwrite,
    )


@contextlib.contextmanager
def _making(path: Path) -> Iterator[Path]:
    """A hidden folder beside `path`, in which this process alone makes what will be there.

    What processes have left that died meanwhile is removed; it can be told by its name.
    """
    lock = HostLock(f"new store {os.path.realpath(path)}")
    try:
        lock.acquire()
    except DeviceBusy as busy:
        raise ConfigurationError(f"{path} is being made by another process: {busy}") from busy
    try:
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
    finally:
        lock.release()


def _not_a_store(path: str, error: Exception) -> str:
    """What is wrong with a path at which Zarr finds no group, without Zarr's own words."""
    if "://" in path and not isinstance(error, FileNotFoundError):
        return f"{path} cannot be opened: {error}"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"{path} cannot be opened: {error.strerror or error}{_leave(error)}"
    if "://" in path or not os.path.lexists(path):
        why = "there is nothing"
    elif not os.path.isdir(path):
        why = "it is a file"
    elif os.path.exists(os.path.join(path, "zarr.json")):
        why = "its zarr.json describes no group, or is damaged"
    else:
        why = "the folder holds none"
    return f"{path} {_NO_STORE}: {why}"


def _target(path: str) -> Any:
    """What Zarr is to read and write: a folder whose files survive a power failure, or an address."""
    if "://" in path:
        return path
    from reservoir_hw.core.durable_store import DurableStore

    return DurableStore(path)


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise MissingExtra("stores of states need zarr: pip install 'reservoir-hw[store]'") from error
    return zarr
