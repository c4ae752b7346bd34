"""Boards on a serial line as reservoirs: states and figures are those of the same model as a Python function."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from serial_boards import BOARDS, Sizes

from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.core.store import StateStore

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "boards"
FULL = Sizes(nodes=50, inputs=1, frame_bytes=4095, lease_ms=2000, lowest=-32768, highest=32767)
WORDS = Sizes(nodes=50, inputs=24, frame_bytes=4095, lease_ms=2000, lowest=-32768, highest=32767)

Opened = Callable[[Sizes], contextlib.AbstractContextManager[Path]]


@pytest.fixture(params=BOARDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Makes a board of given sizes; its reservoir file."""

    @contextlib.contextmanager
    def open_board(sizes: Sizes) -> Iterator[Path]:
        log, file = tmp_path / "log.jsonl", tmp_path / "board.yaml"
        check = [sys.executable, "-m", "reservoir_hw.cli", "emulate", "check", str(log)]
        with BOARDS[request.param](sizes, log) as port:
            file.write_text(json.dumps({"kind": "serial", "port": port, "hil": {"safe_check": check}}))
            yield file

    return open_board


def said(*arguments: object) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = call_here(*arguments, "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_states_are_equal_to_the_last_bit(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    u = np.random.default_rng(0).uniform(-2, 1.9999, (1, 500, 1))
    golden_file = EXAMPLES / "golden.yaml"
    with opened(FULL) as file, open_reservoir(file) as reservoir, open_reservoir(golden_file, inputs=1) as golden:
        for _ in range(2):
            reservoir.reset()
            golden.reset()
            expected = golden.run(u)
            assert np.array_equal(reservoir.run(u), expected)
            assert np.array_equal(reservoir.step(u[:, 0]), golden.step(u[:, 0]))
            assert expected.std() > 0.03


@pytest.mark.slow
def test_figures_are_those_of_the_golden_model(opened: Opened, tmp_path: Path) -> None:
    """NARMA10, a harvest, a measure, the conformance suite, and Elman's grammar with an input for each word."""
    narma = [EXAMPLES / "narma.yaml", "--set", f"run.folder={tmp_path}"]
    measured = [EXAMPLES / "narma.yaml", "--input-range", 0, 0.5, "--only", "memory_capacity", "--folder", tmp_path]
    harvested = [*narma, "--set", f"run.states={tmp_path / 'states'}"]
    with opened(FULL) as file:
        figures = [metrics(said("run", *narma, *way)) for way in ([], ["--reservoir", file])]
        assert figures[0] == figures[1]
        figures = [said("measure", *measured, *way)["measures"] for way in ([], ["--reservoir", file])]
        assert figures[0] == figures[1]
        for way in ([], ["--reservoir", file]):
            said("harvest", *harvested, *way)
        stores = [StateStore.open(path) for path in (tmp_path / "states").iterdir()]
        assert len(stores) == 2
        for name in ("train", "test"):
            one, other = (store.dataset(name).states[:] for store in stores)
            assert one.shape == (1, 1000, 50)
            assert np.array_equal(one, other)
        counts = said("conform", file)["counts"]
        assert (counts["passed"], counts["failed"], counts["inconclusive"]) == (24, 0, 0)
    grammar = ROOT / "examples" / "elman_grammar" / "experiment.yaml"
    elman = ["run", grammar, "--set", f"run.folder={tmp_path}", "--set", "task.sentences=300", "--reservoir"]
    with opened(WORDS) as file:
        figures = [metrics(said(*elman, reservoir)) for reservoir in (EXAMPLES / "golden.yaml", file)]
        assert figures[0] == figures[1]


def metrics(found: dict[str, Any]) -> Any:
    """Of the last row: the reservoir's."""
    return found["rows"][-1]["metrics"]
