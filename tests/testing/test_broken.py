"""Each broken device fails where it must, and nowhere it may not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from served import ipc_address, served
from testing.broken import LIMITS, NODES, FilmConfig, FilmReservoir, Lie

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, parse_reservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.testing import golden
from reservoir_hw.testing.conformance import conform

import numpy as np

HOUSES: dict[str, str] = {
    "stale frames": "function",
    "clip inside the declared range": "function",
    "unsafe after close": "function",
    "off-by-one between chunks": "server",
    "nodes swapped": "server",
    "false continuity": "server",
}

# Device: (groups that must fail, groups that may fail with them).
TABLE: dict[Lie, tuple[set[str], set[str]]] = {
    "none": (set(), set()),
    "stale frames": ({"reset"}, {"continuity", "isolation", "causality", "memory", "stability", "recovery", "identity"}),
    "state not reset": ({"reset"}, {"continuity", "causality", "isolation", "memory", "stability", "snapshot", "recovery", "identity"}),
    "leak across the batch": ({"isolation"}, set()),
    "off-by-one between chunks": ({"continuity"}, {"snapshot"}),
    "clip inside the declared range": ({"range"}, {"identity"}),
    "declared range too wide": ({"range"}, set()),
    "false continuity": ({"continuity"}, {"snapshot"}),
    "non-deterministic declared deterministic": ({"repeatability"}, set()),
    "state lost unnoticed": ({"recovery"}, set()),
    "nodes swapped": ({"identity"}, set()),
    "lock ignored": ({"safety"}, set()),
    "latency off by one": ({"causality"}, {"memory", "identity"}),
    "unsafe after close": ({"safety"}, set()),
    "memory longer than declared": ({"memory"}, set()),
}


def film(folder: Path, lie: Lie, noise: float, **more: Any) -> FilmConfig:
    hil = {"safe_check": "testing.broken:is_safe", "fault": "testing.broken:fail_once", "folder": folder, **more}
    return FilmConfig(kind="film", lie=lie, noise=noise, hil=hil)


@contextmanager
def device(folder: Path, lie: Lie, noise: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReservoirConfig]:
    """The device in its house, with a golden trace of the film before it was broken."""
    with FilmReservoir(film(folder, "none", noise)) as healthy:
        golden.record(healthy, np.random.default_rng(5).uniform(-0.8, 0.8, (1, 60, 1)), folder / "golden")
    config = film(folder, lie, noise, golden="golden")
    house = HOUSES.get(lie, "backend")
    if house == "backend":
        yield config
    elif house == "server":
        with ipc_address() as address, served(FilmReservoir(config), address, lease_s=1.0):
            hil = {"safe_check": "testing.broken:is_safe", "fault": "testing.broken:fail_once", "folder": str(folder), "golden": "golden"}
            yield parse_reservoir(Document.from_mapping({"kind": "zmq", "address": address, "hil": hil}, "test"))
    else:
        monkeypatch.setenv("FILM_FOLDER", str(folder))
        monkeypatch.setenv("FILM_NOISE", str(noise))
        setup = {"stale frames": "stale", "clip inside the declared range": "clipping", "unsafe after close": "unsafe"}[lie]
        yield parse_reservoir(Document.from_mapping({
            "kind": "python", "call": "testing.broken:run", "setup_call": f"testing.broken:set_up_{setup}",
            "reset_call": "testing.broken:to_rest", "close_call": "testing.broken:close", "nodes": NODES, "inputs": 1,
            "simulated": False, "continuity": "held", "input_range": list(LIMITS), "deterministic": not noise,
            "resource": f"film in {folder}",
            "hil": {"safe_check": "testing.broken:is_safe", "fault": "testing.broken:fail_once", "folder": str(folder)},
        }, "test"))


@pytest.mark.parametrize("noise", [0.0, pytest.param(0.003, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lie", get_args(Lie))
def test_fails_where_it_must(lie: Lie, noise: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    must, may = TABLE[lie]
    with device(tmp_path, lie, noise, monkeypatch) as config:
        report = conform(config)
    failed = set(report.failed_groups)
    found = "\n".join(f"{one.title}: {one.outcome}: {one.text}" for one in report.statements)
    print(failed, found)
    assert must <= failed, "should have failed"
    assert failed <= must | may, "should not have failed"
