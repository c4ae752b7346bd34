"""Recordings of others, each read in its own format: linear models on them are those of other libraries."""

from __future__ import annotations

import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow
import pytest
import reservoirpy
import sklearn.datasets
from reservoirpy.nodes import Ridge as RidgeNode
from sklearn.linear_model import Ridge

from reservoir_hw import Experiment, load_model, open_reservoir

DATA = os.environ.get("RESERVOIR_HW_DATA", "")
SKLEARN = Path(sklearn.datasets.__file__).parent / "data"
RESERVOIRPY = Path(reservoirpy.__file__).parent / "datasets"
MATPLOTLIB = Path(mpl.get_data_path()) / "sample_data"
PYARROW = Path(pyarrow.__file__).parent / "tests/data/parquet"

Pair = tuple[Any, Any]


class Real(NamedTuple):
    """What the task is told of a file, and how others read inputs and targets from the same."""

    task: dict[str, Any]
    read: Callable[[Path], Pair]
    lags: int = 5
    folder: Path | None = None


def ahead(values: Any) -> Pair:
    return values[:-1], values[1:]


def nanowires(name: str) -> Real:
    def read(folder: Path) -> Pair:
        with lzma.open(folder / "nwn_rcbench" / f"{name}.txt.xz", "rt") as file:
            table = np.genfromtxt(file, skip_header=1)
        return table[:, 1], table[:, [3, 5, 7]]

    task = {
        "files": f"nwn_rcbench/{name}.txt.xz",
        "inputs": {"columns": ["8_V[V]"]},
        "targets": {"columns": ["9_V[V]", "10_V[V]", "11_V[V]"]},
        "time": {"column": "Time[s]"},
    }
    return Real(task, read)


def diodes(name: str) -> Real:
    def read(folder: Path) -> Pair:
        file = np.load(folder / f"prcpy_fmr/{name}.npz")
        return file["input_mackey_glass"], file["states_V"][:, [20, 400]].astype(float)

    task = {
        "files": f"prcpy_fmr/{name}.npz",
        "inputs": {"array": "input_mackey_glass"},
        "targets": {"array": "states_V", "columns": [20, 400]},
    }
    return Real(task, read)


def magnet(folder: Path) -> Pair:
    file = np.load(folder / "prcpy_fmr/cu2oseo3_skyrmion_mg_mapping.npz")
    return file["field_mT"], file["spectra"][:, [300, 900]].astype(float)


def sunspots(folder: Path) -> Pair:
    with lzma.open(folder / "benchmarks/sunspot.txt.xz", "rt") as file:
        return ahead(np.genfromtxt(file, delimiter=";", usecols=[3]).ravel())


def diabetes(folder: Path) -> Pair:
    return np.loadtxt(folder / "diabetes_data_raw.csv.gz"), np.loadtxt(folder / "diabetes_target.csv.gz")


def stocks(folder: Path) -> Pair:
    frame = pd.read_csv(folder / "msft.csv")
    return frame[["Open", "Volume"]].to_numpy(float), frame["Close"].to_numpy(float)


def diamonds(folder: Path) -> Pair:
    frame = pd.read_parquet(folder / "v0.7.1.parquet")
    return frame[["carat", "depth"]].to_numpy(float), frame["price"].to_numpy(float)


FILES = {
    "laser, npy": Real(
        {"files": "benchmarks/santafe_laser.npy", "targets": {"ahead_steps": 1}},
        lambda folder: ahead(np.load(folder / "benchmarks/santafe_laser.npy").astype(float)),
    ),
    "sunspots, txt.xz": Real(
        {"files": "benchmarks/sunspot.txt.xz", "inputs": {"columns": [3]}, "targets": {"ahead_steps": 1}}, sunspots
    ),
    "nanowires of March, txt.xz": nanowires("011_INRiMARC_NWN_Pad131M_gridSE_MemoryCapacity_2024_03_29"),
    "a diode, npz": diodes("diode_mg_mapping"),
    "a magnet, npz": Real(
        {
            "files": "prcpy_fmr/cu2oseo3_skyrmion_mg_mapping.npz",
            "inputs": {"array": "field_mT"},
            "targets": {"array": "spectra", "columns": [300, 900]},
        },
        magnet,
    ),
    "diabetes of sklearn, two csv.gz": Real(
        {
            "files": str(SKLEARN / "diabetes_data_raw.csv.gz"),
            "targets": {"file": str(SKLEARN / "diabetes_target.csv.gz")},
            "read": {"delimiter": " ", "header": False},
        },
        diabetes,
        1,
        SKLEARN,
    ),
    "shares of matplotlib, csv": Real(
        {
            "files": str(MATPLOTLIB / "msft.csv"),
            "inputs": {"columns": ["Open", "Volume"]},
            "targets": {"columns": ["Close"]},
        },
        stocks,
        folder=MATPLOTLIB,
    ),
    "diamonds of pyarrow, parquet": Real(
        {
            "files": str(PYARROW / "v0.7.1.parquet"),
            "inputs": {"columns": ["carat", "depth"]},
            "targets": {"columns": ["price"]},
        },
        diamonds,
        1,
        PYARROW,
    ),
}


def scaled(values: Any, first: int) -> np.ndarray:
    """By mean and standard deviation of the training, in the float32 of states."""
    values = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    return ((values - values[:first].mean(axis=0)) / values[:first].std(axis=0)).astype(np.float32).astype(np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_linear_model_of_lags_is_that_of_scikit_learn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FILES[name]
    if real.folder is None and not DATA:
        pytest.skip("RESERVOIR_HW_DATA is not set")
    u, y = real.read(real.folder or Path(DATA))
    monkeypatch.chdir(tmp_path)
    result = Experiment(
        {
            "task": {"kind": "data", **real.task, "scale": {"inputs": "standard", "targets": "standard"}},
            "reservoir": {"kind": "nvar", "lags": real.lags, "orders": [1], "constant": False},
            "readout": {"kind": "ridge", "washout": real.lags - 1, "alpha": 1e-2, "standardise": False},
        }
    ).run(report=False)
    rows = result.task.facts["rows"]
    first = rows["train"]
    assert first + rows["test"] == len(u)
    u, y = scaled(u, first), scaled(y, first)
    lags = np.hstack([np.roll(u, lag, axis=0) for lag in range(real.lags)])
    learned = slice(real.lags - 1, first)
    theirs = Ridge(alpha=1e-2).fit(lags[learned], y[learned]).predict(lags[first:]).reshape(rows["test"], -1)
    np.testing.assert_allclose(np.load(result.folder / "outputs/000.npy")[0], theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_readout_of_states_is_that_of_reservoirpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    esn = {"kind": "esn", "nodes": 60, "spectral_radius": 0.8, "seed": 4}
    result = Experiment(
        {
            "task": {"kind": "data", "files": str(RESERVOIRPY / "santafe_laser.npy"), "targets": {"ahead_steps": 1}},
            "reservoir": esn,
            "readout": {"kind": "ridge", "washout": 50, "alpha": 1.0, "standardise": False},
        }
    ).run(report=False)
    task, first = result.task, result.task.facts["rows"]["train"]
    with open_reservoir(esn, inputs=1) as reservoir:
        reservoir.reset(1)
        states = np.asarray(reservoir.run(np.concatenate([task.train.inputs, task.test.inputs], axis=1)))[0]
    states = states.astype(np.float64)
    y = task.train.targets[0].astype(np.float64)
    theirs = RidgeNode(ridge=1.0).fit(states[:first], y, warmup=50)
    # In double, as the rounding of float32 answers is larger than what the two differ by.
    ours = load_model(result.folder).predict(states[None, first:])[0]
    np.testing.assert_allclose(ours, theirs.run(states[first:]), rtol=1e-6, atol=1e-6)
