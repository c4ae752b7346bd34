"""tools/gpu_check.py and benchmarks/gpu.py: what they say with and without a GPU, run through on the CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "gpu_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/gpu.py as a module."""
    spec = importlib.util.spec_from_file_location("gpu_table", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_table", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_it_could_not_check() -> None:
    done = check()
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("There is no GPU here that torch finds.")
    assert "--device cpu" in done.stdout


@pytest.mark.slow
def test_it_runs_through_on_the_cpu(tmp_path: Path) -> None:
    done = check("--device", "cpu", "--quick", "--json", str(tmp_path / "table.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("TRUSTED: the path of a GPU, run on the CPU,")
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert {row["case"].split()[0] for row in rows} == {"esn", "gated_esn", "delay_loop"}


@pytest.mark.slow
def test_every_kind_is_in_the_table_and_a_difference_fails_it(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--quick", "--json", str(tmp_path / "table.json")])
    assert table.main() == 0
    assert "DIFFERS" not in capsys.readouterr().out
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["case"] for row in rows] == [case.name for case in table.cases(quick=True)]
    assert all(row["steps_per_s"] > 0 and row["share"] > 0 and row["agrees"] for row in rows)
    # The states of two engines do differ, by rounding.
    monkeypatch.setattr(table, "AGREEMENT", 1e-12)
    assert table.main() == 1
    assert capsys.readouterr().out.count("DIFFERS") == len(rows)
