"""The notebooks of the examples run from the first cell to the last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What each prints at its end.
NOTEBOOKS = {"notebooks/first_reservoir": "the best bias is 0.3 V", "own_data/own_data": "r2 of the test 0.99"}
EXAMPLES = Path(__file__).parents[1] / "examples"


def test_all_are_listed() -> None:
    found = {str(path.relative_to(EXAMPLES).with_suffix("")) for path in EXAMPLES.glob("**/*.ipynb")}
    assert found == set(NOTEBOOKS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    """As a program: a notebook gives the same functions other names, and shows what the cells return."""
    if name == "own_data/own_data" and "RESERVOIR_HW_DATA" not in os.environ:
        pytest.skip("RESERVOIR_HW_DATA is not set")
    cells = [
        cell for cell in json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    text = "\n\n".join("".join(cell["source"]) for cell in cells).replace("%matplotlib inline", "")
    program = tmp_path / "notebook.py"
    program.write_text(text)
    command = [sys.executable, program.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert NOTEBOOKS[name] in done.stdout
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
