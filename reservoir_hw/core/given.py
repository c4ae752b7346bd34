"""Arrays that a program gives in the place of files: a configuration names them by what they hold.

The name is text, as everything in a configuration. What it stands for is found in this process as long as the program
has it, and in the folder of each file that was read: a run keeps its arrays beside its `experiment.yaml`.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.series_format import columns_of, is_array

PREFIX = "given:"

_GIVEN: weakref.WeakValueDictionary[str, Given] = weakref.WeakValueDictionary()
_FOLDERS: dict[Path, None] = {}


@dataclass(frozen=True, eq=False)
class Given:
    """Series, each (time, channels), and what their channels are called; or one value for each series (`single`)."""

    series: list[np.ndarray]
    names: tuple[str, ...] = ()
    single: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(repr((self.names, self.single)).encode())
        for one in self.series:
            digest.update(f"{one.shape} {one.dtype}".encode())
            digest.update(np.ascontiguousarray(one).data if one.dtype.kind in "fiub" else repr(one.tolist()).encode())
        object.__setattr__(self, "name", f"{PREFIX}{digest.hexdigest()[:32]}")

    def keep(self, folder: Path) -> None:
        """Write an npz file there, by which `given` finds them."""
        path = _file(folder, self.name)
        if not path.exists():
            arrays = {f"series_{number}": one for number, one in enumerate(self.series)}
            np.savez(path, allow_pickle=False, **arrays, names=np.array(self.names, dtype=str), single=self.single)


def give(value: Any, what: str) -> Given:
    """What a caller gave: (time, channels) is one series, a list or (batch, time, channels) are several.

    One axis is one channel of one series. Raises `ShapeError` that names `what` for other arrays, and
    `ConfigurationError` for a table whose index goes backwards: its rows are not in the order of time.
    """
    several = isinstance(value, list | tuple)
    parts = list(value) if several else [value]
    names: tuple[str, ...] = ()
    series: list[np.ndarray] = []
    for part in parts:
        if columns := columns_of(part):
            names, before = tuple(map(str, columns)), names
            if before not in ((), names):
                raise ConfigurationError(
                    f"{what}: the tables have different columns, or in another order: {', '.join(before)}, and "
                    f"{', '.join(names)}"
                )
        if getattr(getattr(part, "index", None), "is_monotonic_increasing", True) is False:
            raise ConfigurationError(f"{what}: the index of the table goes backwards: sort its rows by time")
        # A copy: what the caller does to the array later is none of ours.
        array = np.array(part.to_numpy() if hasattr(part, "to_numpy") else as_numpy(part))
        if several and array.ndim > 2:
            raise ShapeError(f"{what}: each array of a list is one series (time, channels), not {array.shape}")
        if array.ndim > 3 or array.dtype.kind not in "fiubUSO":
            raise ShapeError(f"{what} is {array.dtype} of {array.shape}: give numbers (time, channels)")
        if array.dtype.kind == "O":
            array = _plain(array, what)
        series += list(array) if array.ndim == 3 else [array[:, None] if array.ndim == 1 else array]
    return _known(Given(series, names))


def give_single(value: Any, what: str) -> Given:
    """One value for each series: (series,) numbers or labels."""
    array = np.array(value.to_numpy() if hasattr(value, "to_numpy") else as_numpy(value))
    if array.ndim != 1:
        raise ShapeError(f"{what}: one value for each series is (series,), not {array.shape}")
    return _known(Given([_plain(array, what) if array.dtype.kind == "O" else array], single=True))


def give_targets(inputs: Given, targets: Any, what: str) -> Given:
    """Targets as they belong to inputs: one value for each of several series, or series themselves."""
    plain = isinstance(targets, list | tuple) and not is_array(targets)
    values = np.asarray(targets) if plain else targets
    if getattr(values, "ndim", 0) == 1 and len(inputs.series) == len(values) > 1:
        return give_single(values, what)
    return give(values, what)


def given_in(task: dict[str, Any]) -> list[Given]:
    """Put names in the place of arrays among the settings of a task; returns what they stand for.

    Who keeps the settings keeps this list, too: nobody else does.
    """
    if not is_array(task.get("inputs")):
        return []
    found = [give(task["inputs"], "task.inputs")]
    task["inputs"] = found[0].name
    for key in ("targets", "labels"):
        if task.get(key) is not None and not isinstance(task[key], dict | str):
            found.append(give_targets(found[0], task[key], f"task.{key}"))
            task[key] = found[-1].name
    return found


def given(name: str, key: str) -> Given:
    """What the name stands for. Raises `ConfigurationError` that begins with `key` where nobody has it."""
    if (found := _GIVEN.get(name)) is not None:
        return found
    for folder in _FOLDERS:
        path = _file(folder, name)
        if path.is_file():
            with np.load(path, allow_pickle=False) as file:
                series = [file[f"series_{number}"] for number in range(len(file.files) - 2)]
                found = Given(series, tuple(file["names"].tolist()), bool(file["single"]))
            if found.name != name:
                raise ConfigurationError(f"{key}: {path} holds other arrays than it was written with")
            return _known(found)
    raise ConfigurationError(
        f"{key}: these arrays were given by a Python program, which is gone, and no run folder that was read has them"
    )


def look_beside(file: Path) -> None:
    """Arrays may lie in the folder of this file."""
    _FOLDERS.setdefault(file.resolve().parent)


def _known(one: Given) -> Given:
    return _GIVEN.setdefault(one.name, one)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(':', '-')}.npz"


def _plain(array: np.ndarray, what: str) -> np.ndarray:
    """Objects as numbers or texts."""
    values: Sequence[Any] = array.ravel().tolist()
    if all(isinstance(one, str) for one in values):
        return array.astype(str)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise ShapeError(f"{what} holds {type(values[0]).__name__} and other objects: give numbers or texts") from None
