"""The jobs of five users on a simulation, a function, a served device and a bench, from data to answers at the edge."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from reservoir_hw import Experiment, ReservoirModel
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.emulators.bench import BenchConfig
from reservoir_hw.experiment import Result
from tests.command_line import call_here
from tests.emulated_lab import QUIET, emulated_lab
from tests.served import free_address, served

ROOT = Path(__file__).parents[2]
FILM = {
    "kind": "python",
    "call": "tests.experiment.swap_film:measure",
    "reset_call": "tests.experiment.swap_film:settle",
}
FILM |= {"params": {"bias": 0.1}, "inputs": 1, "nodes": 16, "simulated": False, "continuity": "held"}
FILM |= {"deterministic": True, "input_range": [-2, 2]}
ESN = {"kind": "esn", "nodes": 20, "inputs": 1}

# How alike two drives are, in standard deviations of the target. A bench has two clocks: where a drive is cut into
# other pieces its states differ by some thousandths of their spread.
WITHIN = {"esn": 1e-4, "function": 1e-4, "served": 1e-4, "bench": 1e-2}


@pytest.fixture(params=WITHIN)
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, float]]:
    """A reservoir file whose device is there, and how alike two drives of it are."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    with device(request.param) as section:
        (tmp_path / "lab.yaml").write_text(json.dumps(section))
        yield "lab.yaml", WITHIN[request.param]


@contextmanager
def device(name: str) -> Iterator[dict[str, Any]]:
    if name == "served":
        address = free_address()
        with served(build_reservoir(reservoir_config(ESN)), address):
            yield {"kind": "zmq", "address": address}
    elif name == "bench":
        with emulated_lab(BenchConfig(trigger_jitter=0).with_device(QUIET), input_range=[-1, 1]) as bench:
            yield bench.config
    else:
        yield FILM if name == "function" else ESN


def recording(steps: int = 240) -> pd.DataFrame:
    u = np.random.default_rng(5).uniform(15, 25, steps)
    return pd.DataFrame({"when": 0.5 * np.arange(steps), "valve": u, "flow": np.convolve(u, [1, 2, 1])[:steps]})


def trained(task: dict[str, Any], lab: str) -> tuple[dict[str, float], Result]:
    """The metrics of a run whose model is exported, and its result."""
    document = {"task": {"kind": "data", **task}, "reservoir": ESN, "readout": {"kind": "ridge", "alpha": 1e-3}}
    document["readout"]["washout"] = 8
    Path("own.yaml").write_text(yaml.safe_dump(document))
    result = Experiment.from_file("own.yaml", reservoir=lab).run(report=False)
    done = call_here("export", result.folder, "-o", "model.rhw", "--reservoir", lab)
    assert done.returncode == 0, done.stderr
    return result.rows[0].evaluation.metrics, result


def answers(lab: str, *arguments: object) -> pd.DataFrame:
    done = call_here("infer", "model.rhw", "--reservoir", lab, *arguments)
    assert done.returncode == 0, done.stderr
    return pd.read_csv(io.StringIO(done.stdout))


def nrmse(frame: pd.DataFrame, answered: pd.DataFrame) -> float:
    """Of the last quarter."""
    test = slice(len(frame) - len(frame) // 4, None)
    wanted = frame["flow"].to_numpy()[test]
    return float(np.sqrt(np.mean((answered["flow"].to_numpy()[test] - wanted) ** 2) / wanted.var()))


WRITE: dict[str, Callable[[pd.DataFrame], Any]] = {
    "run.csv": lambda frame: frame.to_csv("run.csv", index=False),
    "run.parquet": lambda frame: frame.to_parquet("run.parquet"),
    "run.nc": lambda frame: frame.to_xarray().drop_vars("index").to_netcdf("run.nc"),
    "run.npz": lambda frame: np.savez(
        "run.npz", allow_pickle=False, **{name: frame[name].to_numpy() for name in frame}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", WRITE)
def test_a_series_in_a_file(file: str, lab: tuple[str, float]) -> None:
    frame, (reservoir, within) = recording(), lab
    WRITE[file](frame)
    columns = {"inputs": {"columns": ["valve"]}, "targets": {"columns": ["flow"]}}
    metrics, _ = trained({"files": file, **columns, "time": {"column": "when"}}, reservoir)
    answered = answers(reservoir, "--input", file)
    assert len(answered) == len(frame)
    assert nrmse(frame, answered) == pytest.approx(metrics["nrmse"], abs=within)


@pytest.mark.slow
def test_forty_trials_with_labels(lab: tuple[str, float]) -> None:
    reservoir, _ = lab
    Path("trials").mkdir()
    rng, labels = np.random.default_rng(6), {}
    for number in range(40):
        level = (-1.0, 1.0)[number % 2]
        trial = pd.DataFrame({"force": level + rng.normal(0, 0.3, 10 + number % 5)})
        trial.to_csv(f"trials/{number:02}.csv", index=False)
        labels[f"{number:02}.csv"] = ("low", "high")[number % 2]
    pd.Series(labels, name="label").rename_axis("file").to_csv("labels.csv")
    metrics, _ = trained({"files": "trials/*.csv", "labels": {"file": "labels.csv"}}, reservoir)
    said = answers(reservoir, "--input", "trials").set_index("file")["label"]
    right = [said[file if file in said else f"trials/{file}"] == label for file, label in labels.items()]
    assert metrics["accuracy"] == 1
    assert all(right)


@pytest.mark.slow
def test_a_notebook_without_files(lab: tuple[str, float]) -> None:
    reservoir, within = lab
    frame = recording()
    X, y = frame[["valve"]], frame["flow"]
    with ReservoirModel(reservoir, {"kind": "ridge", "alpha": 1e-3}, washout=8) as model:
        said = model.fit(X[:180], y[:180]).predict(X)
        model.export("model.rhw")
    frame.to_csv("run.csv", index=False)
    answered = answers(reservoir, "--input", "run.csv")
    # `infer` answers after the washout.
    assert answered[:8].isna().to_numpy().all()
    assert np.abs(answered.to_numpy()[8:, 0] - np.asarray(said)[8:]).max() < within * y.std()


@pytest.mark.slow
def test_a_forecast(lab: tuple[str, float]) -> None:
    reservoir, within = lab
    wave = pd.DataFrame({"level": 20 + np.sin(0.3 * np.arange(400))})
    wave.to_csv("wave.csv", index=False)
    loop = {"starts": 1, "warmup_steps": 60, "forecast_steps": 10}
    task = {"files": "wave.csv", "targets": {"ahead_steps": 1}, "closed_loop": loop}
    metrics, result = trained(task, reservoir)
    # A row is lost to the target of the row before it.
    wave[-71:-11].to_csv("until.csv", index=False)
    said = answers(reservoir, "--input", "until.csv", "--forecast", 10)["level"]
    assert result.task.series is not None
    of_run = result.task.series.user_outputs(result.outputs())[0, :, 0]
    assert metrics["diverged"] == 0
    assert np.abs(said.to_numpy() - of_run).max() < 20 * within * wave["level"].std()
