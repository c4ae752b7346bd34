"""A store as one file that other programs read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulators.foreign import run_witness
from scipy.io import netcdf_file

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.experiment.states.traces.exporting import export_trace


@pytest.mark.slow
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
        assert found.variables["001_step"][:].tolist() == list(range(20))
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


def named_trace(path: Path) -> StateStore:
    """Two data sets of a device with a period, units and names."""
    spec = ReservoirSpec(
        inputs=2,
        nodes=3,
        identity=Identity(vendor="lab", model="film", simulated=False),
        step_period_s=0.25,
        input_unit="V",
        state_unit="V",
        input_names=("gate", "8_V[V]"),
        node_names=("x", "µ", "9_V[V]"),
    )
    random = np.random.default_rng(0)
    store = StateStore.create(path, {"spec": spec.model_dump(mode="json")})
    for name, sequences in (("000", 2), ("001", 1)):
        dataset = store.add(name, sequences=sequences, inputs=2, nodes=3, chunk_steps=7, steps=10)
        for place in dataset.regions():
            shape = sequences, place.stop - place.start
            inputs, states = random.normal(size=(*shape, 2)), random.normal(size=(*shape, 3))
            dataset.write(place, inputs.astype(np.float32), states.astype(np.float32), timing=(0.0, 0.0))
    store.close_segment([], complete=True)
    return store


def test_names_and_times_go_along(tmp_path: Path) -> None:
    store = named_trace(tmp_path / "trace")
    export_trace(store, tmp_path / "all.nc")
    with netcdf_file(str(tmp_path / "all.nc"), mmap=False) as found:
        step = found.variables["000_step"]
        assert (step.dimensions, step.units, step[:].tolist()) == (("000_step",), b"s", [t / 4 for t in range(10)])
        names = found.variables["000_node"]
        assert [b"".join(name).rstrip(b"\0").decode() for name in names[:]] == ["x", "µ", "9_V[V]"]
        assert found.variables["000_states"].units == b"V"
    export_trace(store, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert list(rows[0]) == ["dataset", "sequence", "step", "time_s", "u_gate", "u_8_V[V]", "x_x", "x_µ", "x_9_V[V]"]
    assert all(float(row["time_s"]) == int(row["step"]) / 4 for row in rows)


@pytest.mark.slow
def test_xarray_and_pandas_see_the_same_bits_with_coordinates(tmp_path: Path) -> None:
    store = named_trace(tmp_path / "trace")
    for name in ("all.nc", "all.csv"):
        export_trace(store, tmp_path / name)
    run_witness(Path(__file__).with_name("xarray_witness.py"), tmp_path, tmp_path)
