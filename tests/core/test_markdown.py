"""Tables that scripts keep in a README."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.markdown import interval, replace_tables, spread, table

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_table_takes_its_place_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- mine -->\nold\n<!-- end of mine -->\nafter\n")
    lines = table(["model", "loss"], [["a", spread([1, 2, 3])], ["b", spread([1], ".1f")]])
    replace_tables(path, {"mine": lines})
    shown = "| model | loss |\n| --- | --- |\n| a | 2.000 ± 1.000 |\n| b | 1.0 |"
    assert path.read_text() == f"before\n<!-- mine -->\n{shown}\n<!-- end of mine -->\nafter\n"
    with pytest.raises(ConfigurationError, match="no place for other; add the lines <!-- other -->"):
        replace_tables(path, {"mine": ["x"], "other": []})
    assert shown in path.read_text()


def test_an_interval_is_that_of_student() -> None:
    assert interval([1.0, 2.0, 3.0]) == "+2.000 [-0.484, +4.484]"  # t = 4.3027 of two degrees


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*/tables.py")), ids=lambda path: path.parent.name)
def test_the_tables_of_an_example_are_those_of_its_rows(script: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(script.parent, tmp_path / "example")
    subprocess.run([sys.executable, copy / "tables.py"], check=True)
    assert (copy / "README.md").read_text() == (script.parent / "README.md").read_text()
