"""Experiments of somebody who knew the pages alone, on five devices; and what is told when a device is not the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.emulators.board.line import emulated_board
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.deploy.evaluate import evaluate
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.readout.edge import EdgeRunner
from tests.emulated_lab import emulated_lab
from tests.served import free_address, served

FILES = Path(__file__).parent / "swap_files"
ROOT = Path(__file__).parents[2]
FILM = {
    "kind": "python",
    "call": "tests.experiment.swap_film:measure",
    "reset_call": "tests.experiment.swap_film:settle",
    "params": {"bias": 0.1},
    "inputs": 1,
    "nodes": 16,
    "simulated": False,
    "continuity": "held",
    "deterministic": True,
    "input_range": [-1, 1],
}
GRAMMAR = {
    "task": {"kind": "elman_grammar", "sentences": 40},
    "reservoir": FILM,
    "readout": {"kind": "ridge"},
}


@contextmanager
def device(name: str) -> Iterator[dict[str, Any]]:
    """A section `reservoir` whose device, of one input, is there."""
    if name == "film":
        yield FILM
    elif name == "photonic":
        yield {"kind": "delay_loop", "inputs": 1, "nodes": 30, "nonidealities": "photonic_delay_loop"}
    elif name == "served":
        address = free_address()
        config = reservoir_config({"kind": "esn", "nodes": 20, "inputs": 1})
        with served(build_reservoir(config), address):
            yield {"kind": "zmq", "address": address}
    elif name == "bench":
        with emulated_lab(input_range=[-1, 1]) as lab:
            yield lab.config
    else:
        with emulated_board(8, 1) as line:
            yield {"kind": "serial", "port": line.port}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["film", "photonic", "served", "bench", "board"])
@pytest.mark.parametrize("file", sorted(path.name for path in FILES.glob("*.yaml")))
def test_files_of_a_reader_run_on_devices(
    file: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "written").symlink_to(FILES)
    with device(name) as section:
        document = load_document(FILES / file)
        from reservoir_hw.core.configuration import Document
        from reservoir_hw.experiment.configuration.document import replace_reservoir

        replace_reservoir(document, Document.from_mapping(section, "the device"))
        for key, value in {**CUTS[file], "baselines": [], "run.folder": str(tmp_path), "run.point": 0}.items():
            document.set(key, value, "the cut")
        result = Experiment(document).run(report=False)
    assert all(np.isfinite(value) for value in result.rows[0].evaluation.metrics.values())
    states = result.provenance["rows"][0]["reservoir"]
    assert states["counters"]["steps"] > 100


CUTS: dict[str, dict[str, Any]] = {
    "classification.yaml": {"task.train_periods": 20, "task.test_periods": 10},
    "closed_loop.yaml": {
        "task.train_steps": 300,
        "task.closed_loop.starts": 1,
        "task.closed_loop.warmup_steps": 20,
        "task.closed_loop.forecast_steps": 10,
        "reservoir.out_of_range": "clip",
    },
    "language.yaml": {"task.limit": 1500},
    "sweep_esn.yaml": {"task.task.train_steps": 400, "task.task.test_steps": 100, "sweep": None},
    "sweep_loop.yaml": {"task.train_steps": 300, "task.test_steps": 100, "sweep": None},
}


@pytest.mark.slow
def test_a_server_with_another_bias_is_not_taken_for_its_harvest(tmp_path: Path) -> None:
    address = free_address()
    sections = {**GRAMMAR, "reservoir": {"kind": "zmq", "address": address, "timeout_s": 0.5}}
    sections["run"] = {"folder": str(tmp_path), "states": str(tmp_path / "states")}
    with served(build_reservoir(reservoir_config(FILM)), address):
        Experiment(sections).harvest()
        assert "states were read from" in "".join(Experiment(sections).run(report=False).notes)
    other = {**FILM, "params": {"bias": 0.2}}
    with served(build_reservoir(reservoir_config(other)), address):
        with pytest.raises(ConfigurationError, match="another device, or with other settings: content was"):
            Experiment(sections).run(report=False)
        told = Experiment(sections).run(report=False, accept_change="a new bias").warnings
        assert any("accepted: a new bias" in warning for warning in told)
    told = Experiment(sections).run(report=False).warnings
    assert any("could not be asked" in warning for warning in told)


def test_a_readout_keeps_its_mask(tmp_path: Path) -> None:
    run = Experiment({**GRAMMAR, "run": {"folder": str(tmp_path)}}).run(report=False)
    mask = run.provenance["rows"][0]["reservoir"]["spec"]["input_mask"]
    assert mask["seed"] == 0
    assert any("24 channels are spread over 1 input" in text for text in run.warnings)
    again = evaluate(run.folder)
    assert again.scores["there"] == again.scores["here"]
    bundle = tmp_path / "model.rhw"
    export_run(run.folder, bundle)
    u = np.eye(24, dtype=np.float64)[np.arange(40) % 24][None] - 0.5
    with EdgeRunner(bundle, FILM) as runner:
        answers = runner.run(u)
    # A neighbour with another range would have another mask of its own; told as another device.
    neighbour = {**FILM, "input_range": [-2, 2], "serial": "2"}
    with pytest.raises(ConfigurationError, match="is another device"):
        EdgeRunner(bundle, neighbour).__enter__()
    with EdgeRunner(bundle, neighbour, any_device=True) as runner:
        np.testing.assert_array_equal(runner.run(u), answers)
