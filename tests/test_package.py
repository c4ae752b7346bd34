"""What is shipped: the wheel, the links, lazy imports."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ("backends", "drivers", "readout", "hardware")

LOOK = """
import json, sys
import reservoir_hw
assert "site-packages" in reservoir_hw.__file__, reservoir_hw.__file__
from reservoir_hw import Reservoir, RidgeReadout, open_reservoir
loaded = [name for name in ("torch", "numba", "scipy", "matplotlib") if name in sys.modules]
try:
    open_reservoir({"kind": "esn", "nodes": 3, "inputs": 1})
except ImportError as error:
    message = str(error)
print(json.dumps({"loaded": loaded, "numpy": "numpy" in sys.modules, "message": message}))
"""


def test_links_point_into_the_package() -> None:
    for name in LINKS:
        link = ROOT / name
        target = Path(os.readlink(link)) if link.is_symlink() else Path(link.read_text().strip())
        assert target == Path("reservoir_hw") / name
        assert (ROOT / target).is_dir()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built from a copy: setuptools leaves its scratch folders beside the sources.
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "reservoir_hw", source / "reservoir_hw", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tree = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "reservoir_hw").rglob("*")
        if path.is_file() and not {"__pycache__", "build"} & set(path.relative_to(ROOT).parts)
    }
    assert held == tree


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(list(map(str, install)), check=True, capture_output=True, env=environment)
    look = subprocess.run(
        [str(python), "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert look.returncode == 0, look.stderr
    seen = json.loads(look.stdout)
    assert seen["loaded"] == []
    assert seen["numpy"]
    assert "pip install 'reservoir-hw[sim]'" in seen["message"]
    program = tmp_path / "empty/bin/reservoir-hw"
    listed = subprocess.run(
        [str(program), "list", "backends"], env=environment, capture_output=True, text=True, check=False
    )
    assert "esn" in listed.stdout, listed.stderr


def test_no_lazy_name_is_that_of_a_file_beside_it() -> None:
    """As soon as the file is imported, it would stand in the place of the name."""
    clashes = [
        f"{package.parent.name}: {alias.name}"
        for package in (ROOT / "reservoir_hw").rglob("__init__.py")
        for block in ast.parse(package.read_text()).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (package.parent / f"{alias.name}.py").exists() or (package.parent / alias.name).is_dir()
    ]
    assert not clashes


def test_help_answers_in_half_a_second() -> None:
    def seconds() -> float:
        # Of a processor: the machine may be busy with other tests.
        started = os.times()
        subprocess.run([sys.executable, "-m", "reservoir_hw.cli", "--help"], check=True, capture_output=True)
        ended = os.times()
        return ended.children_user + ended.children_system - started.children_user - started.children_system

    assert any(seconds() < 0.5 for _ in range(5))


def test_a_file_is_checked_without_optuna() -> None:
    code = "import sys; sys.modules['optuna'] = None; from reservoir_hw.cli import main; main()"
    command = [sys.executable, "-c", code, "check", str(ROOT / "examples/delay_loop/narma.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
