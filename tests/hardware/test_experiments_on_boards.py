"""Experiments on the C server give what they give on the integer model, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_server import built, running
from command_line import ended
from safetensors.numpy import load_file

from reservoir_hw.core.store import StateStore

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "examples" / "boards" / "golden.yaml"
NARMA = ROOT / "examples" / "boards" / "narma.yaml"
ELMAN = ROOT / "examples" / "elman_grammar" / "experiment.yaml"

pytestmark = pytest.mark.slow


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A reservoir file of a C server with as many inputs as the test says."""
    with running(built(DEFINES=f"-DVN_INPUTS={request.param}")) as (address, _):
        file = tmp_path / "server.yaml"
        file.write_text(f"kind: zmq\naddress: {address}\n")
        yield file


def call(*arguments: object) -> str:
    done = ended(*arguments, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def result_of(experiment: Path, reservoir: Path, folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The metrics, and the weights of the readout."""
    call("run", experiment, "--reservoir", reservoir, "--set", f"run.folder={folder}", "--set", "baselines=[]")
    (run,) = folder.iterdir()
    (row,) = json.loads((run / "metrics.json").read_text())["rows"]
    (weights,) = run.rglob("*.safetensors")
    return row["metrics"], load_file(weights)


@pytest.mark.parametrize(
    ("experiment", "server"), [(NARMA, 1), (ELMAN, 24)], indirect=["server"], ids=["narma", "elman"]
)
def test_the_same_metrics_and_weights(experiment: Path, server: Path, tmp_path: Path) -> None:
    metrics, weights = result_of(experiment, server, tmp_path / "server")
    golden_metrics, golden_weights = result_of(experiment, GOLDEN, tmp_path / "golden")
    assert metrics == golden_metrics
    assert weights.keys() == golden_weights.keys()
    assert all(np.array_equal(weights[name], golden_weights[name]) for name in weights)


@pytest.mark.parametrize("server", [1], indirect=True)
def test_the_same_harvest(server: Path, tmp_path: Path) -> None:
    harvested = []
    for name, file in (("server", server), ("golden", GOLDEN)):
        call("harvest", NARMA, "--reservoir", file, "--set", f"run.states={tmp_path / name}")
        (store,) = (tmp_path / name).iterdir()
        datasets = StateStore.open(store).datasets
        harvested.append({name: (one.inputs[:], one.states[:]) for name, one in datasets.items()})
    assert harvested[0].keys() == harvested[1].keys()
    for name, arrays in harvested[0].items():
        for mine, golden in zip(arrays, harvested[1][name], strict=True):
            assert np.array_equal(mine, golden)


@pytest.mark.parametrize("server", [1], indirect=True)
def test_it_does_what_it_declares(server: Path) -> None:
    said = call("conform", server)
    assert "24 passed, 7 unverified, 2 not offered" in said


@pytest.mark.parametrize("server", [1], indirect=True)
def test_it_keeps_the_rules_of_the_page(server: Path) -> None:
    said = call("serve", "--check", server.read_text().split()[-1])
    assert " 0 broken, " in said
