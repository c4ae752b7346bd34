"""`reservoir-hw init` on a file of the user: what it writes runs as it is."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from command_line import called

RNG = np.random.default_rng(2)
U = RNG.uniform(-1, 1, 300)
FRAME = pd.DataFrame({"time_s": 0.5 * np.arange(300), "who": "anna", "u": U, "y": np.roll(U, 1)})


def trials(folder: Path) -> None:
    (folder / "trials").mkdir()
    for number in range(12):
        FRAME[: 60 + number].to_csv(folder / f"trials/{number}.csv", index=False)
    pd.DataFrame({"trial": [f"{number}.csv" for number in range(12)], "class": ["a", "b"] * 6}).to_csv(
        folder / "labels.csv", index=False
    )


FORMS: dict[str, tuple[Any, list[str], dict[str, Any]]] = {
    "a table": (
        lambda folder: FRAME.to_csv(folder / "run.csv", index=False),
        ["--data", "run.csv"],
        {"time": {"column": "time_s"}, "inputs": {"columns": ["u"]}, "targets": {"columns": ["y"]}},
    ),
    "a named target with gaps": (
        lambda folder: FRAME.assign(u=FRAME["u"].where(FRAME.index % 10 == 0)).to_csv(folder / "run.csv", sep=";"),
        ["--data", "run.csv", "--targets", "u"],
        {
            "time": {"column": "time_s"},
            "inputs": {"columns": ["", "y"]},
            "targets": {"columns": ["u"], "missing": "skip"},
        },
    ),
    "parquet": (
        lambda folder: FRAME[["u", "y"]].to_parquet(folder / "run.parquet"),
        ["--data", "run.parquet", "--targets", "u"],
        {"inputs": {"columns": ["y"]}, "targets": {"columns": ["u"]}},
    ),
    "a frame in NetCDF": (
        lambda folder: FRAME[["u", "y"]].rename_axis("time").to_xarray().to_netcdf(folder / "run.nc"),
        ["--data", "run.nc"],
        {"time": {"column": "time"}, "inputs": {"columns": ["u"]}, "targets": {"columns": ["y"]}},
    ),
    "one column": (
        lambda folder: np.save(folder / "run.npy", np.sin(np.arange(300))),
        ["--data", "run.npy"],
        {"inputs": {"columns": [0]}, "targets": {"ahead_steps": 1}},
    ),
    "arrays": (
        lambda folder: np.savez(folder / "run.npz", u=RNG.uniform(-1, 1, (300, 2)), y=U),
        ["--data", "run.npz"],
        {"inputs": {"array": "u"}, "targets": {"array": "y"}},
    ),
    "labelled trials": (
        trials,
        ["--data", "trials/*.csv", "--labels", "labels.csv"],
        {"time": {"column": "time_s"}, "labels": {"file": "labels.csv", "name": "trial", "label": "class"}},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_it_writes_a_file_that_runs(form: str, tmp_path: Path) -> None:
    make, options, expected = FORMS[form]
    make(tmp_path)
    called("init", "own.yaml", *options, cwd=tmp_path)
    task = yaml.safe_load((tmp_path / "own.yaml").read_text())["task"]
    if form == "labelled trials":
        expected = {"inputs": {"columns": ["u", "y"]}, **expected}
    assert {key: task[key] for key in task if key not in ("kind", "files", "test")} == expected
    called("run", "own.yaml", "--set", "reservoir.nodes=20", "--json", cwd=tmp_path)


@pytest.mark.slow
def test_what_is_not_clear_is_asked_for(tmp_path: Path) -> None:
    trials(tmp_path)
    np.savez(tmp_path / "three.npz", a=np.zeros((9, 2)), b=np.zeros((9, 2)), c=np.zeros((9, 2)))
    (tmp_path / "words.csv").write_text("who,what\na,b\nc,d\n")
    refused = {
        ("--data", "none.csv"): "there is no file none.csv",
        ("--data", "trials/1.csv", "--targets", "z"): "--targets has no column 'z'; it has time_s, who, u, y",
        ("--data", "trials/1.csv", "--labels", "labels.csv"): "give a glob",
        ("--data", "trials/*", "--labels", "trials/1.csv"): "needs a column with the names of the files",
        ("--targets", "y"): "name it",
        ("--data", "three.npz"): "name the targets with --targets ARRAY",
        ("--data", "words.csv"): "has no column of numbers",
    }
    for options, said in refused.items():
        done = called("init", "own.yaml", *options, cwd=tmp_path, code=2)
        assert said in done.stderr, options
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert not (tmp_path / "own.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("answers", "kind"), [("run.csv\nu\n", "data"), ("\n", "elman_grammar")])
def test_in_a_terminal_it_asks(answers: str, kind: str, tmp_path: Path) -> None:
    FRAME[["u", "y"]].to_csv(tmp_path / "run.csv", index=False)
    ours, theirs = pty.openpty()
    os.write(ours, answers.encode())
    command = [sys.executable, "-m", "reservoir_hw.cli", "init"]
    said = subprocess.run(
        command, cwd=tmp_path, stdin=theirs, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "A file of your own data (empty: a benchmark): " in said
    task = yaml.safe_load((tmp_path / "experiment.yaml").read_text())["task"]
    assert task["kind"] == kind
    assert task.get("targets", {"columns": ["u"]}) == {"columns": ["u"]}
    # Programs are asked nothing.
    subprocess.run([*command, "b.yaml", "--json"], cwd=tmp_path, stdin=theirs, capture_output=True, check=True)
    assert called("init", "c.yaml", cwd=tmp_path).stdout.startswith("Wrote c.yaml")
    for end in (ours, theirs):
        os.close(end)
