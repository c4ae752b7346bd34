"""What a lab gives beside files: arrays, named by what they hold, and functions, by "package.module:function"."""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import os
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator

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
            arrays |= {"names": np.array(self.names, dtype=str), "single": np.array(self.single)}
            np.savez(path, allow_pickle=False, **arrays)


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
        index = getattr(part, "index", None)
        if columns := columns_of(part):
            names, before = tuple(map(str, columns)), names
            if before not in ((), names):
                raise ConfigurationError(
                    f"{what}: the tables have different columns, or in another order: {', '.join(before)}, and "
                    f"{', '.join(names)}"
                )
        if getattr(index, "is_monotonic_increasing", True) is False:
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


# ---- Functions and classes of a lab that a configuration names: "package.module:function".
#
# A program can also give the function or the class itself. Its name then ends with a digest of its source, so that a
# configuration is text in any case, and tells one version of a function from another.


def look_in_current_folder() -> None:
    """Let modules named in a configuration ("package.module:function") be found in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


FUNCTION = r"^[A-Za-z_][\w.]*:[A-Za-z_<][\w.<>]*(@[0-9a-f]{12}(\.\d+)?)?$"
"""What names a function."""


def _checked(name: str) -> str:
    if re.match(FUNCTION, name):
        return name
    module, dot, function = name.rpartition(".")
    hint = f"; did you mean {module}:{function}?" if dot and re.match(FUNCTION, f"{module}:{function}") else ""
    raise ValueError(f"a function is named module:function, for instance mylab.bench:measure{hint}")


FunctionName = Annotated[str, AfterValidator(_checked)]
"""A name of a function as a field of a configuration."""

_GIVEN_FUNCTIONS: dict[str, Callable[..., Any]] = {}
# What a function carries along counts with its value; other objects have none that lasts.
_PLAIN = (bool, int, float, str, type(None))


def name_of(function: Callable[..., Any]) -> str:
    """A name for this function, by which `import_function` finds it in this process.

    It is "module:function@digest". The digest is of the source, and of numbers and texts that the function carries
    along. Functions that carry along different objects get different names. A function that is defined again with the
    same source takes the name over.
    """
    inner, carried = _inside(function)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    first = f"{module}:{_described(inner).__qualname__}@{_digest(function)}"
    name, number = first, 1
    while name in _GIVEN_FUNCTIONS and not _same(_inside(_GIVEN_FUNCTIONS[name])[1], carried):
        number += 1
        name = f"{first}.{number}"
    _GIVEN_FUNCTIONS[name] = function
    return name


def import_function(target: str, key: str, what: str = "function") -> Callable[..., Any]:
    """The function `target`, or another thing that can be called (`what`), looked for in the current folder first.

    Raises `ConfigurationError` that names `key`, the place of `target` in the configuration.
    """
    if target in _GIVEN_FUNCTIONS:
        return _GIVEN_FUNCTIONS[target]
    path, _, digest = target.partition("@")
    module, _, name = path.partition(":")
    look_in_current_folder()
    try:
        found: Any = import_module(module)
    except Exception as error:
        if digest:
            raise _no_longer_given(target, key, what, "this process does not have it") from error
        # Whatever the module does on import: a syntax error, a division by zero, a missing driver.
        raise ConfigurationError(
            f"{key}: {target!r} cannot be imported: {type(error).__name__}: {error} "
            "(looked in the current folder and in sys.path)"
        ) from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        if digest:
            raise _no_longer_given(target, key, what, "this process does not have it") from error
        close = difflib.get_close_matches(name, dir(found), 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"{key}: {module} has no {what} {name!r}{hint}") from error
    if not callable(found):
        raise ConfigurationError(f"{key}: {target!r} is not a {what}")
    if digest and digest != _digest(found):
        raise _no_longer_given(target, key, what, "its source is another one now")
    return found


def without_digest(target: str) -> str:
    """Module and name of a function."""
    return target.partition("@")[0]


def source_of(target: str, key: str, what: str = "function") -> str:
    """A digest of the source of a function or class, and of its bases in the same package, as they are now.

    What a program has given has its own in its name. Raises `ConfigurationError` as `import_function`.
    """
    if "@" in target:
        return target.partition("@")[2]
    found: Any = import_function(target, key, what)
    package = target.partition(":")[0].partition(".")[0]
    bases = [one for one in getattr(found, "__mro__", ())[1:] if one.__module__.partition(".")[0] == package]
    return hashlib.sha256(" ".join(map(_digest, [found, *bases])).encode()).hexdigest()[:12]


def _no_longer_given(target: str, key: str, what: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{key}: {without_digest(target)!r} was given by a Python program, and {why}; give the {what} again, or "
        "write it into a module and name it in the configuration"
    )


def _inside(function: Any) -> tuple[Any, list[Any]]:
    """The function itself, and what it carries: values of a closure, the object of a method, arguments of a partial."""
    if isinstance(function, functools.partial):
        inner, carried = _inside(function.func)
        return inner, [*carried, *function.args, *function.keywords.values()]
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    own = getattr(function, "__self__", None)
    return function, cells if own is None or inspect.ismodule(own) else [*cells, own]


def _described(function: Any) -> Any:
    """What has a name and a source: the function, or the class of an object that can be called."""
    return function if hasattr(function, "__qualname__") else type(function)


def _digest(function: Any) -> str:
    inner, carried = _inside(function)
    try:
        source = inspect.getsource(_described(inner))
    except (OSError, TypeError):
        # Typed into a prompt or a notebook, or compiled from C.
        described = _described(inner)
        parts = vars(described).items() if isinstance(described, type) else [("", inner)]
        found = [(name, _compiled(part)) for name, part in parts if hasattr(part, "__code__")]
        source = repr(found) if found else repr(described)
    values = [value if isinstance(value, _PLAIN) else type(value).__qualname__ for value in carried]
    return hashlib.sha256(repr((source, values)).encode()).hexdigest()[:12]


def _compiled(function: Any) -> tuple[Any, ...]:
    """What stands for the source of a function where it cannot be read."""
    code = function.__code__
    return code.co_code, code.co_names, [const for const in code.co_consts if isinstance(const, _PLAIN)]


def _same(carried: list[Any], others: list[Any]) -> bool:
    """Whether two functions with one digest carry the same objects. Plain values are in the digest."""
    pairs = zip(carried, others, strict=True)
    return all(one is other or isinstance(one, _PLAIN) for one, other in pairs)
