"""Sequences in a store: inputs and states side by side, when they were driven, and what stands along the axes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.files import settle_folder

# In one file of the coordinate: of an axis that grows, the last file is written again.
_STEPS_IN_FILE = 1 << 16


@dataclass(frozen=True)
class Coordinate:
    """`values` (n,) along an axis: numbers from 0 or seconds with `units` "1" or "s", or names (str) without units."""

    values: np.ndarray
    units: str
    about: str


def step_coordinate(spec: Mapping[str, Any], start: int, stop: int) -> Coordinate:
    """Steps `start` to `stop`: seconds since the first step if the device declares its period, else their numbers."""
    if period := spec.get("step_period_s"):
        return Coordinate(np.arange(start, stop) * float(period), "s", "time since the first step of the sequence")
    return Coordinate(np.arange(start, stop), "1", "step of the sequence")


def row_coordinates(spec: Mapping[str, Any], *, sequences: int, inputs: int, nodes: int) -> dict[str, Coordinate]:
    """Those of all other axes: names of channels and nodes if the device has them, else numbers."""

    def named(names: list[str] | None, count: int, about: str) -> Coordinate:
        if names:
            return Coordinate(np.array(names, dtype=object), "", f"name of the {about}")
        return Coordinate(np.arange(count), "1", f"number of the {about}")

    return {
        "sequence": named(None, sequences, "sequence"),
        "channel": named(spec.get("input_names"), inputs, "input channel"),
        "node": named(spec.get("node_names"), nodes, "node"),
    }


def create_coordinates(group: Any, spec: Mapping[str, Any], steps: int, **sizes: int) -> None:
    """Write those of all axes; the time axis, `steps` long, may grow. `sizes` are those of `row_coordinates`."""
    for axis, coordinate in row_coordinates(spec, **sizes).items():
        size = len(coordinate.values)
        _axis(group, axis, coordinate, size, size)[:] = coordinate.values
    create_steps(group, spec, steps)


def create_steps(group: Any, spec: Mapping[str, Any], stop: int, *, overwrite: bool = False) -> Any:
    """A new coordinate of the time axis, `stop` steps long."""
    made = _axis(group, "step", step_coordinate(spec, 0, 0), stop, _STEPS_IN_FILE, overwrite=overwrite)
    extend_steps(made, spec, 0, stop)
    return made


def _axis(group: Any, axis: str, coordinate: Coordinate, size: int, chunk: int, *, overwrite: bool = False) -> Any:
    """A new array with the type and the attributes of a coordinate."""
    units = {"units": coordinate.units} if coordinate.units else {}
    return group.create_array(
        axis,
        shape=(size,),
        chunks=(chunk,),
        dtype="str" if coordinate.values.dtype == object else coordinate.values.dtype,
        dimension_names=(axis,),
        attributes={**units, "long_name": coordinate.about},
        overwrite=overwrite,
    )


def extend_steps(steps: Any, spec: Mapping[str, Any], known: int, stop: int) -> None:
    """Let the coordinate reach `stop`; up to `known` it is there."""
    if steps.shape[0] < stop:
        steps.resize((stop,))
    # Whole files: one that is damaged could not be written over in part.
    for start in range(known - known % _STEPS_IN_FILE, stop, _STEPS_IN_FILE):
        end = min(start + _STEPS_IN_FILE, steps.shape[0])
        steps[start:end] = step_coordinate(spec, start, end).values


# ---- What is wrong with a store: damaged, lost, or not to be read now or by this user.


# What Zarr and its codecs raise where a file is damaged: a single bit makes any of these.
BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
NO_STORE = "is not a store of states, as `run.record`, `reservoir-hw harvest` and `reservoir-hw trace import` make it"


def is_damage(error: ConfigurationError) -> bool:
    """Whether something of a store is damaged or lost; it may also be that it cannot be read now, or by this user."""
    return error.__cause__ is None or harmed(error.__cause__)


def harmed(error: BaseException) -> bool:
    """Whether an error in reading means that the file is damaged, and not that the system refused."""
    if isinstance(error, OSError):
        return isinstance(error, FileNotFoundError)
    # "can't start new thread" and "cannot schedule new futures" are troubles of this process, not of a file.
    return not (isinstance(error, RuntimeError) and re.search("new (thread|futures)", str(error)))


def origin(error: BaseException) -> Any:
    """What the system said first."""
    while isinstance(error.__cause__, OSError):
        error = error.__cause__
    return error


@contextlib.contextmanager
def readable(path: str, what: str, *broken: type[Exception]) -> Iterator[None]:
    """Raises `ConfigurationError` where `what` is read of a file that is damaged, or that cannot be read.

    `broken` are raised by others than Zarr where a file is damaged.
    """
    try:
        yield
    except (*BROKEN, *broken) as error:
        if harmed(error):
            raise ConfigurationError(f"{path} is damaged: {what} cannot be read ({brief(error)})") from error
        raise ConfigurationError(f"{path}: {what} cannot be read ({brief(error)}){leave(error)}") from error


def brief(error: Exception) -> str:
    """One line; some errors carry the whole file."""
    if isinstance(error, UnicodeDecodeError):
        return f"{error.reason} at byte {error.start}"
    text = " ".join(str(error).split())
    if not isinstance(error, OSError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else f"{text[:200]} ..."


def leave(error: Exception) -> str:
    """What to do about a file that may not be opened, or nothing."""
    return "; ask its owner to let you read and write it" if isinstance(error, PermissionError) else ""


def not_a_store(path: str, error: Exception) -> str:
    """What is wrong with a path at which Zarr finds no group, without Zarr's own words."""
    if "://" in path and not isinstance(error, FileNotFoundError):
        return f"{path} cannot be opened: {error}"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return f"{path} cannot be opened: {error.strerror or error}{leave(error)}"
    if "://" in path or not os.path.lexists(path):
        why = "there is nothing"
    elif not os.path.isdir(path):
        why = "it is a file"
    elif os.path.exists(os.path.join(path, "zarr.json")):
        why = "its zarr.json describes no group, or is damaged"
    else:
        why = "the folder holds none"
    return f"{path} {NO_STORE}: {why}"


# ---- Sequences in a store: inputs and states side by side, and when they were driven.


log = logging.getLogger(__name__)

UNFINISHED = ".partial"
# The attribute that marks times of which some were damaged.
_GIVEN_UP = "given_up"


class Home:
    """The root of a store and its journal, and what is done with its files beside Zarr."""

    def __init__(self, path: str, root: Any) -> None:
        self.path = path
        self.root = root
        self.journal: Any = root["journal"]
        self.folder = None if "://" in path else Path(path)
        """None at an address."""

    @property
    def spec(self) -> dict[str, Any]:
        """What the device declared, or nothing."""
        return self.root.attrs.get("spec", {})

    def remove(self, name: str) -> bool:
        """Remove a file of the store, if that is a folder and the file there; whether it was."""
        if self.folder is not None and (self.folder / name).exists():
            self.refuse_if_reading()
            (self.folder / name).unlink()
            settle_folder((self.folder / name).parent)
            return True
        return False

    def refuse_if_reading(self) -> None:
        """Raise `ConfigurationError` if the store was not opened to be written."""
        if self.root.store.read_only:
            raise ConfigurationError(f"{self.path} was opened to be read: open it with writable=True")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Where something of the store is changed: errors of the disk name the store, and say what to do."""
        self.refuse_if_reading()
        try:
            yield
        except OSError as failed:
            error = origin(failed)
            where = f" ({error.filename})" if error.filename else ""
            said = f"{self.path} cannot be written: {error.strerror or error}{where}{leave(error)}"
            raise (OSError(said) if error.errno is None else OSError(error.errno, said)) from failed


@dataclass(frozen=True)
class Region:
    """Some consecutive steps of some sequences: `rows` start..stop of the sequences, steps start..stop."""

    rows: slice
    start: int
    stop: int


class Dataset:
    """Sequences that were driven alike: inputs and states side by side.

    `inputs` and `states` are Zarr arrays (sequences, time, ·): slices of them are read from the disk as numpy
    arrays. States are written in chunks of `chunk_steps` steps of `group` sequences.
    """

    def __init__(self, group: Any, home: Home) -> None:
        self._group = group
        self._home = home
        # In the opposite order of that in which a writer lets them grow; times, which are no states, when asked for.
        self.states: Any = group["states"]
        self.inputs: Any = group["inputs"]
        self.name: str = group.basename
        """Its name in the store."""
        self.sequences: int = self.states.shape[0]
        """How many sequences."""
        self.group, self.chunk_steps = self.states.chunks[:2]
        """Sequences and steps in one chunk."""

    @property
    def steps(self) -> int:
        """Length in time."""
        return self.states.shape[1]

    @property
    def facts(self) -> dict[str, Any]:
        """What was noted about this data set when it was made."""
        return dict(self._group.attrs)

    @property
    def coordinates(self) -> dict[str, Coordinate]:
        """What stands along the axes `sequence`, `step`, `channel` and `node`."""
        sizes = {"sequences": self.sequences, "inputs": self.inputs.shape[2], "nodes": self.states.shape[2]}
        rows = row_coordinates(self._home.spec, **sizes)
        return {**rows, "step": step_coordinate(self._home.spec, 0, self.steps)}

    @property
    def timing(self) -> np.ndarray:
        """(groups, chunks, 2): start in seconds since 1970, duration in seconds; NaN where it is not known.

        Raises `ConfigurationError` if they are damaged.
        """
        found = np.full((*self._chunks(self.steps), 2), np.nan)
        with readable(self._home.path, f"times of {self.name}"):
            # A process that grew the time axis and died may have left fewer or more.
            times = self._times[: found.shape[0], : found.shape[1]]
        found[: times.shape[0], : times.shape[1]] = times
        return found

    @property
    def times_given_up(self) -> str | None:
        """What was wrong with times that were lost when more was written; None if none were lost."""
        with readable(self._home.path, f"times of {self.name}"):
            return self._times.attrs.get(_GIVEN_UP)

    def regions(self) -> Iterator[Region]:
        """All chunks, group after group."""
        for first in range(0, self.sequences, self.group):
            rows = slice(first, min(first + self.group, self.sequences))
            for start in range(0, self.steps, self.chunk_steps):
                yield Region(rows, start, min(start + self.chunk_steps, self.steps))

    def read(self, region: Region) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and states there.

        Raises `ConfigurationError` where they were never written, or the file is damaged.
        """
        return self.read_inputs(region.rows, region.start, region.stop), self.read_states(region)

    def read_states(self, region: Region) -> np.ndarray:
        """As `read`, the states alone."""
        states = self._read(self.states, region.rows, region.start, region.stop)
        # A single node may well be NaN.
        missing = np.isnan(states[:, -1]).all(axis=-1) if states.size else np.zeros(0, bool)
        if missing.any():
            row = int(missing.argmax())
            start = region.start + int(np.isnan(states[row]).all(axis=-1).argmax())
            raise ConfigurationError(
                f"{self._home.path}: {self.name}, steps {start} to {region.stop - 1} of sequence "
                f"{region.rows.start + row} were never harvested"
            )
        return states

    def read_inputs(self, rows: slice, start: int, stop: int) -> np.ndarray:
        """Inputs alone, NaN where nothing was written.

        Raises `ConfigurationError` if a file is damaged, or lost.
        """
        inputs = self._read(self.inputs, rows, start, stop)
        if self._lost(inputs, rows, start):
            # They may have been written just now. Inputs come before states, so those of these states are there.
            inputs = self._read(self.inputs, rows, start, stop)
            if lost := self._lost(inputs, rows, start):
                raise ConfigurationError(
                    f"{self._home.path}: inputs of {self.name}, steps {lost.start} to {lost.stop - 1} of sequence "
                    f"{lost.rows.start}: they were written, and are not there any more: a file was lost"
                )
        return inputs

    def _lost(self, inputs: np.ndarray, rows: slice, start: int) -> Region | None:
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
                if self._home.journal.attrs["complete"] or not np.isnan(states).all():
                    return Region(slice(row, row + 1), at, min(begin + size, start + missing.shape[1]))
        return None

    def file_of(self, region: Region, array: str) -> str:
        """Where the chunk of `inputs` or `states` lies."""
        group, chunk = self._chunk_of(region)
        return f"{self._home.path}/{self.name}/{array}/c/{group}/{chunk}/0"

    def _read(self, array: Any, rows: slice, start: int, stop: int) -> np.ndarray:
        try:
            return array[rows, start:stop]
        except BROKEN as error:
            why = ": the file is damaged" if harmed(error) else leave(error)
            raise ConfigurationError(
                f"{self._home.path}: {array.basename} of {self.name}, steps {start} to {stop - 1} of sequence "
                f"{rows.start}: cannot be read ({brief(error)}){why}"
            ) from error

    def erase(self, region: Region) -> None:
        """Make one chunk unwritten again. It must not count any more."""
        at = (region.rows, slice(region.start, region.stop))
        with self._home.writing():
            self._forget(region)
            for array in (self.states, self.inputs):
                array[at] = np.nan
            self._note_time(region, (np.nan, np.nan))

    def is_written(self, region: Region) -> bool:
        """Whether there are states, whether or not they count; damaged ones are."""
        try:
            return not np.isnan(self.states[region.rows.start, region.stop - 1]).all()
        except BROKEN:
            return True

    def write(self, region: Region, inputs: np.ndarray, states: np.ndarray, *, timing: tuple[float, float]) -> None:
        """Write one chunk, the time axis growing if need be.

        `timing` is when it was driven, in seconds since 1970, and for how long. Counts once it is committed.
        Raises `OSError` if the disk is full, or nothing may be written.
        """
        self._home.refuse_if_reading()
        if region.start % self.chunk_steps or region.stop - region.start > self.chunk_steps:
            raise ShapeError(f"steps {region.start} to {region.stop} are not one chunk of {self.chunk_steps} steps")
        if region.rows.start % self.group or region.rows.stop != min(region.rows.start + self.group, self.sequences):
            raise ShapeError(f"sequences {region.rows.start} to {region.rows.stop} are not one group of {self.group}")
        at = (region.rows, slice(region.start, region.stop))
        with self._home.writing():
            if region.stop > self.steps:
                # States last. A reader then finds times and inputs for all states, even after a crash here.
                self._timing_for(region.stop)
                self._grow_steps(region.stop)
                for array in (self.inputs, self.states):
                    if array.shape[1] < region.stop:
                        array.resize((array.shape[0], region.stop, array.shape[2]))
            self._forget(region)
            self.inputs[at] = inputs
            self.states[at] = states
            self._note_time(region, timing)

    def _note_time(self, region: Region, timing: tuple[float, float]) -> None:
        group, chunk = self._chunk_of(region)
        times = self._timing_for(self.steps)
        try:
            times[group, chunk] = timing
        except (ValueError, RuntimeError) as error:
            if not harmed(error):
                raise
            # Times are less precious than states: the times near this one are lost; at a remote address, all times are.
            if "://" in self._home.path:
                times = self._new_timing(error, *times.shape[:2])
            elif self._home.remove(f"{self.name}/timing/c/{group}/{chunk // times.chunks[1]}/0"):
                times = self._times = times.update_attributes(self._given_up(error))
            else:
                raise
            times[group, chunk] = timing

    @cached_property
    def _times(self) -> Any:
        return self._group["timing"]

    @cached_property
    def _step_axis(self) -> Any:
        return self._group["step"]

    def _timing_for(self, steps: int) -> Any:
        """The array of times, of so many steps at least; a new one if it is damaged."""
        groups, chunks = self._chunks(steps)
        try:
            times = self._times
        except BROKEN as error:
            if not harmed(error):
                raise
            times = self._new_timing(error, groups, chunks)
        if times.shape[1] < chunks:
            times.resize((groups, chunks, 2))
        return times

    def _grow_steps(self, stop: int) -> None:
        try:
            extend_steps(self._step_axis, self._home.spec, self.steps, stop)
        except BROKEN as error:
            # What is damaged can be made again.
            if not harmed(error):
                raise
            self._step_axis = create_steps(self._group, self._home.spec, stop, overwrite=True)

    def _new_timing(self, error: Exception, groups: int, chunks: int) -> Any:
        self._times = create_timing(self._group, groups, chunks, attributes=self._given_up(error), overwrite=True)
        return self._times

    def _given_up(self, error: Exception) -> dict[str, str]:
        """The note that some times are not known any more."""
        log.warning(
            "%s: times of %s were damaged (%s) and are not known any more", self._home.path, self.name, brief(error)
        )
        return {_GIVEN_UP: brief(error)}

    def _chunks(self, steps: int) -> tuple[int, int]:
        return -(-self.sequences // self.group), -(-steps // self.chunk_steps)

    def _forget(self, region: Region) -> None:
        """Remove the files of a chunk: one that is damaged could not be written over in part."""
        group, chunk = self._chunk_of(region)
        # States without inputs would pass for damage.
        for array in (self.states, self.inputs):
            self._home.remove(f"{self.name}/{array.basename}/c/{group}/{chunk}/0")

    def _chunk_of(self, region: Region) -> tuple[int, int]:
        return region.rows.start // self.group, region.start // self.chunk_steps


def codecs() -> list[Any]:
    """How arrays are packed. The checksum makes a damaged file an error instead of wrong states."""
    from zarr.codecs import BloscCodec, Crc32cCodec

    return [BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"), Crc32cCodec()]


def create_timing(
    group: Any, groups: int, chunks: int, *, attributes: Mapping[str, Any] | None = None, overwrite: bool = False
) -> Any:
    """A new array of times, none of them known yet."""
    return group.create_array(
        "timing",
        shape=(groups, chunks, 2),
        chunks=(1, 1024, 2),
        dtype="float64",
        fill_value=float("nan"),
        compressors=codecs(),
        attributes=None if attributes is None else dict(attributes),
        dimension_names=("group", "chunk", "start_and_duration_s"),
        overwrite=overwrite,
    )
