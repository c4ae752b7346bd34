"""A store as one file that other programs read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import netcdf_file

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.record import Recorder
from reservoir_hw.experiment.states.traces.exporting import export_trace


def test_every_bit_arrives_in_another_file(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    file: dict[str, Any] = {"kind": "esn", "nodes": 3, "inputs": 2}
    with open_reservoir(file) as reservoir, Recorder(reservoir, tmp_path / "trace", chunk_steps=7):
        for batch in (2, 1):
            reservoir.reset(batch)
            reservoir.run(random.uniform(-1, 1, (batch, 20, 2)).astype(np.float32))
    store = StateStore.open(tmp_path / "trace")
    assert len(store.datasets) == 2
    export_trace(store, tmp_path / "all.nc")
    with netcdf_file(str(tmp_path / "all.nc"), mmap=False) as found:
        for name, dataset in store.datasets.items():
            for array in ("inputs", "states"):
                variable = found.variables[f"{name.replace('.', '_')}_{array}"]
                np.testing.assert_array_equal(variable[:], getattr(dataset, array)[:])
                assert variable.units == b"1"
    export_trace(store, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 60
    for row in rows:
        dataset = store.datasets[row["dataset"]]
        at = int(row["sequence"]), int(row["step"])
        np.testing.assert_array_equal(np.array([row["u0"], row["u1"]], np.float32), dataset.inputs[at])
        np.testing.assert_array_equal(np.array([row["x0"], row["x1"], row["x2"]], np.float32), dataset.states[at])
    for path, message in ((tmp_path / "all.csv", "exists already"), (tmp_path / "all.mat", "ends with .nc")):
        with pytest.raises(ConfigurationError, match=message):
            export_trace(store, path)
    assert not list(tmp_path.glob(".*"))
