"""`reservoir-hw trace` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import alone

from reservoir_hw.cli import trace
from reservoir_hw.core.seeds import generator

MAPPING = """\
device: {vendor: lab, model: film, simulated: false}
inputs: {array: u}
states: {array: x}
"""

_call = alone("trace", trace.app)


def call(*arguments: object, code: int = 0) -> str:
    return _call(*arguments, code=code).output


@pytest.fixture
def files(tmp_path: Path) -> Path:
    random = generator(1, "cli")
    u, x = random.uniform(-1, 1, 50), random.standard_normal((50, 3))
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    np.savez(tmp_path / "a.npz", u=u, x=x)
    np.savez(tmp_path / "b.npz", u=u, x=x + 0.01 * random.standard_normal((50, 3)))
    return tmp_path


@pytest.mark.slow
def test_import_info_diff_plot(files: Path) -> None:
    for name in "ab":
        said = call("import", files / "mapping.yaml", files / f"{name}.npz", "-o", files / name)
        assert "hardware: lab film" in said
    about = json.loads(call("info", files / "a", "--json"))
    assert about["datasets"]["000"]["steps"] == 50
    assert "complete" in call("info", files / "a")
    assert "0, identical" in call("diff", files / "a", files / "a", "--tolerance", "0")
    said = call("diff", files / "a", files / "b", "--tolerance", "1e-3", code=1)
    assert "Worst nodes" in said
    assert "3 of 3 nodes are above the tolerance of 0.001" in said
    call("diff", files / "a", files / "b", "--tolerance", "0.1")
    call("diff", files / "a", files / "b")
    assert json.loads(call("diff", files / "a", files / "b", "--json"))["nrmse"] < 0.1
    written = json.loads(call("export", files / "a", "--to", files / "a.csv", "--json"))
    assert written == {"file": str(files / "a.csv"), "bytes": (files / "a.csv").stat().st_size}
    call("plot", files / "a", "-o", files / "a.png", "--steps", "20")
    assert (files / "a.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mapping.yaml", "it is a file"),
        (".", "the folder holds none"),
        ("nowhere", "there is nothing"),
        ("array", "its zarr.json describes no group, or is damaged"),
        ("group", "it is another Zarr group"),
        ("memory://nowhere", "there is nothing"),
    ],
)
@pytest.mark.parametrize("command", ["info", "plot", "diff"])
def test_what_is_no_trace(files: Path, name: str, why: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    zarr.create_array("array", shape=(3,), dtype="float32")
    zarr.create_group("group")
    more = {"info": (), "plot": ("-o", "a.png"), "diff": (name,)}[command]
    made = "as `run.record`, `reservoir-hw harvest` and `reservoir-hw trace import` make it"
    assert call(command, name, *more, code=2) == f"error: {name} is not a store of states, {made}: {why}\n"


def test_mistakes_are_one_message(files: Path) -> None:
    assert "error: " in call("info", files, code=2)
    (files / "wrong.yaml").write_text(MAPPING.replace("array: x", "array: y"))
    said = call("import", files / "wrong.yaml", files / "a.npz", "-o", files / "t", code=2)
    assert "no array 'y'" in said
    call("import", files / "mapping.yaml", files / "a.npz", "-o", files / "t")
    assert "not supported" in call("plot", files / "t", "-o", files / "t.gifx", code=2)
    assert "exists already" in call("import", files / "mapping.yaml", files / "a.npz", "-o", files / "t", code=2)


def test_diff_names_a_node_that_is_not_finite(files: Path) -> None:
    for name in "ab":
        call("import", files / "mapping.yaml", files / "a.npz", "-o", files / name)
    states: Any = zarr.open_group(files / "b", mode="r+")["000/states"]
    states[0, 7, 1] = np.nan
    said = call("diff", files / "a", files / "b", "--tolerance", "0.1", code=1)
    assert "0 of 3 nodes are above the tolerance of 0.1; not finite: node 1" in said
    assert "constant" not in said
    assert json.loads(call("diff", files / "a", files / "b", "--json"))["not_finite"] == ["1"]
