"""As a newcomer: a fresh clone, a fresh environment, the README's commands, nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Tong et al. 2007, Table 4: verb agreement error by distance.
PAPER_ESN_1000 = {1: 0.03, 2: 0.00, 3: 0.00, 4: 0.08, 6: 0.26, 7: 0.43}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout to clone")
    target = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    return target


def make(clone: Path, target: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return subprocess.run(["make", target], cwd=clone, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_make_demo_runs(clone: Path) -> None:
    done = make(clone, "demo")
    assert done.returncode == 0, done.stderr
    assert (clone / "runs" / "side_by_side" / "side_by_side.png").stat().st_size > 30_000
    folder = next((clone / "runs").glob("elman_grammar-*"))
    assert {path.stem for path in (folder / "figures").iterdir()} == {"agreement_error", "probe", "roc", "vary"}
    assert (folder / "report.html").stat().st_size > 100_000
    rows = json.loads((folder / "metrics.json").read_text())["rows"]
    assert len(rows) == 45 + 2 * 5


@pytest.mark.slow
@pytest.mark.parametrize("distance", PAPER_ESN_1000)
def test_the_demo_is_within_0_04_of_the_paper(clone: Path, distance: int) -> None:
    folders = list((clone / "runs").glob("elman_grammar-*"))
    assert folders, "make demo has left no run"
    rows = json.loads((folders[0] / "metrics.json").read_text())["rows"]
    errors = [row["metrics"][f"agreement_error/{distance}"] for row in rows if row["label"] == "ESN(1000)"]
    assert sum(errors) / len(errors) <= PAPER_ESN_1000[distance] + 0.04


@pytest.mark.slow
def test_the_development_environment_installs(clone: Path) -> None:
    done = make(clone, "install")
    assert done.returncode == 0, done.stderr
    command = [
        ".venv/bin/python",
        "-m",
        "pytest",
        "-q",
        "tests/core/test_reservoir.py",
        "tests/core/test_configuration.py",
    ]
    tested = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
