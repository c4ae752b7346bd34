"""What stands along the axes of a data set: an array named after each axis, which xarray takes for its coordinate."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError

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
    period = spec.get("step_period_s")
    if period:
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


def create_coordinates(group: Any, coordinates: Mapping[str, Coordinate]) -> None:
    """Write those of axes that do not grow."""
    for axis, coordinate in coordinates.items():
        values = coordinate.values
        made = group.create_array(
            axis,
            shape=values.shape,
            chunks=values.shape,
            dtype="str" if values.dtype == object else values.dtype,
            dimension_names=(axis,),
            attributes=_attributes(coordinate),
        )
        made[:] = values


def create_steps(group: Any, spec: Mapping[str, Any], stop: int, *, overwrite: bool = False) -> Any:
    """A new coordinate of the time axis, `stop` steps long."""
    none = step_coordinate(spec, 0, 0)
    made = group.create_array(
        "step",
        shape=(stop,),
        chunks=(_STEPS_IN_FILE,),
        dtype=none.values.dtype,
        dimension_names=("step",),
        attributes=_attributes(none),
        overwrite=overwrite,
    )
    extend_steps(made, spec, 0, stop)
    return made


def extend_steps(steps: Any, spec: Mapping[str, Any], known: int, stop: int) -> None:
    """Let the coordinate reach `stop`; up to `known` it is there."""
    if steps.shape[0] < stop:
        steps.resize((stop,))
    # Whole files: one that is damaged could not be written over in part.
    for start in range(known - known % _STEPS_IN_FILE, stop, _STEPS_IN_FILE):
        end = min(start + _STEPS_IN_FILE, steps.shape[0])
        steps[start:end] = step_coordinate(spec, start, end).values


def _attributes(coordinate: Coordinate) -> dict[str, str]:
    units = {"units": coordinate.units} if coordinate.units else {}
    return {**units, "long_name": coordinate.about}


# ---- What is wrong with a store: damaged, lost, or not to be read now or by this user.


# What Zarr and its codecs raise where a file is damaged: a single bit makes any of these.
BROKEN = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
NO_STORE = "is not a store of states, as `run.record`, `reservoir-hw harvest` and `reservoir-hw trace import` make it"


def is_damage(error: ConfigurationError) -> bool:
    """Whether something of a store is damaged or lost; it may also be that it cannot be read now, or by this user."""
    return error.__cause__ is None or harmed(error.__cause__)


def harmed(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return isinstance(error, FileNotFoundError)
    # "can't start new thread" and "cannot schedule new futures" are troubles of this process, not of a file.
    return not (isinstance(error, RuntimeError) and re.search("new (thread|futures)", str(error)))


def origin(error: BaseException) -> Any:
    """What the system said first."""
    while isinstance(error.__cause__, OSError):
        error = error.__cause__
    return error


def unreadable(path: str, what: str, error: Exception) -> ConfigurationError:
    if harmed(error):
        return ConfigurationError(f"{path} is damaged: {what} cannot be read ({brief(error)})")
    return ConfigurationError(f"{path}: {what} cannot be read ({brief(error)}){leave(error)}")


def brief(error: Exception) -> str:
    """One line; some errors carry the whole file."""
    if isinstance(error, UnicodeDecodeError):
        return f"{error.reason} at byte {error.start}"
    text = " ".join(str(error).split())
    if not isinstance(error, OSError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else f"{text[:200]} ..."


def leave(error: Exception) -> str:
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
