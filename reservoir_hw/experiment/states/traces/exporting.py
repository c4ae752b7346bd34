"""A trace as one file for other programs: NetCDF, or a table of numbers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.store import Coordinate, Dataset, Region, StateStore
from reservoir_hw.experiment.states.progress import Progress, StepCounter

_ENCODING = "_Encoding"
"""The attribute by which programs know that bytes are text."""


def export_trace(
    store: StateStore, path: str | Path, *, dataset: str | None = None, progress: Progress | None = None
) -> Path:
    """Write inputs and states into a new file; steps that were never written are NaN.

    `.nc` is NetCDF 3 with 64-bit offsets, made in memory: for each data set variables such as `train_inputs` (sequence,
    step, channel) and `train_states` (sequence, step, node), and `train_step` and so on with the coordinates of the
    store. `.csv` is a table with the columns dataset, sequence, step, time_s if the device declares its period, u0 and
    so on, x0 and so on; where channels or nodes have names, u_NAME, x_NAME. `dataset` names the only one that is
    written. Raises `ConfigurationError` for another ending, or a file that is there.
    """
    path = Path(path)
    if path.suffix.lower() not in (".nc", ".csv"):
        raise ConfigurationError(f"--to {path}: the name ends with .nc (NetCDF) or .csv")
    if path.exists():
        raise ConfigurationError(f"{path} exists already; name another file, or remove it first")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--to {path}: there is no folder {path.parent}")
    datasets = store.datasets if dataset is None else {dataset: store.dataset(dataset)}
    counter = StepCounter(progress, sum(one.sequences * one.steps for one in datasets.values()))
    counter.say(f"writing {path}")
    # It appears whole, or not at all.
    making = path.with_name(f".{path.name}.partial")
    try:
        write = _write_netcdf if path.suffix.lower() == ".nc" else _write_csv
        write(making, store, datasets, counter)
        making.rename(path)
    finally:
        making.unlink(missing_ok=True)
    return path


def _write_netcdf(path: Path, store: StateStore, datasets: dict[str, Dataset], counter: StepCounter) -> None:
    with extra("sim", "NetCDF needs scipy"):
        from scipy.io import netcdf_file
    with netcdf_file(str(path), "w", version=2) as file:
        file.source = f"reservoir_hw, {store.path}"
        for name, one in datasets.items():
            prefix = name.replace(".", "_")
            for axis, coordinate in one.coordinates.items():
                _write_coordinate(file, f"{prefix}_{axis}", coordinate)
            for array, axis in (("inputs", "channel"), ("states", "node")):
                kept = getattr(one, array)
                of = tuple(f"{prefix}_{each}" for each in ("sequence", "step", axis))
                variable = file.createVariable(f"{prefix}_{array}", kept.dtype, of)
                variable.units = str(kept.attrs.get("units", "1"))
                variable[:] = np.nan
            for region in one.regions():
                at, inputs, states = _read(one, region)
                file.variables[f"{prefix}_inputs"][at] = inputs
                file.variables[f"{prefix}_states"][at] = states
                counter.add(inputs.shape[0] * inputs.shape[1])


def _write_coordinate(file: Any, name: str, coordinate: Coordinate) -> None:
    """A dimension and a variable of its name. The format has no text and no long integers: names are bytes in UTF-8."""
    values = coordinate.values
    file.createDimension(name, len(values))
    if values.dtype == object:
        packed = np.char.encode(values.astype(str), "utf-8")
        file.createDimension(f"{name}_bytes", packed.dtype.itemsize)
        variable = file.createVariable(name, "c", (name, f"{name}_bytes"))
        setattr(variable, _ENCODING, "utf-8")
        variable[:] = packed.view("S1").reshape(len(values), -1)
    else:
        kept = values.astype(np.int32) if values.dtype.kind == "i" else values
        variable = file.createVariable(name, kept.dtype, (name,))
        variable[:] = kept
        variable.units = coordinate.units
    variable.long_name = coordinate.about


def _write_csv(path: Path, store: StateStore, datasets: dict[str, Dataset], counter: StepCounter) -> None:
    if len({(one.inputs.shape[2], one.states.shape[2]) for one in datasets.values()}) > 1:
        raise ConfigurationError("the data sets have other numbers of channels or nodes: name one (--dataset)")
    # Names and period are those of the device, so they are the same in all data sets.
    of = next(iter(datasets.values())).coordinates
    timed = of["step"].units == "s"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        columns = [*_columns("u", of["channel"]), *_columns("x", of["node"])]
        table.writerow(["dataset", "sequence", "step", *(["time_s"] if timed else []), *columns])
        for name, one in datasets.items():
            times = one.coordinates["step"].values
            for region in one.regions():
                _, inputs, states = _read(one, region)
                for row, t in np.ndindex(inputs.shape[:2]):
                    # As short as the number allows: a reader gets the same bits.
                    numbers = map(str, (*inputs[row, t], *states[row, t]))
                    time = [times[region.start + t]] if timed else []
                    table.writerow([name, region.rows.start + row, region.start + t, *time, *numbers])
                counter.add(inputs.shape[0] * inputs.shape[1])


def _columns(letter: str, coordinate: Coordinate) -> list[str]:
    named = "_" if coordinate.values.dtype == object else ""
    return [f"{letter}{named}{value}" for value in coordinate.values]


def _read(dataset: Dataset, region: Region) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """Where a region lies, with its inputs and states."""
    at = (region.rows, slice(region.start, region.stop))
    return at, dataset.inputs[at], dataset.states[at]
