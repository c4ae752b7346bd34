"""The papers' experiments, each in its quick form, as a user runs them."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QUICK = sorted((ROOT / "examples").glob("*/quick.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("file", QUICK, ids=lambda file: file.parent.name)
def test_a_quick_experiment_takes_less_than_two_minutes_of_a_processor(file: Path, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "reservoir_hw.cli", "run", str(file), "--set", f"run.folder={tmp_path}", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert found["status"] == "complete"
    assert all(math.isfinite(value) for row in found["rows"] for value in row["metrics"].values())
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120
