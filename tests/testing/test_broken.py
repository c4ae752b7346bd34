"""Each broken device fails where it must, and nowhere it may not; docs/conform.md has the table."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from served import ipc_address, served
from testing.broken import LIMITS, NODES, FilmConfig, FilmReservoir, Lie, start_noise

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.reservoir_config import GROUPS, ReservoirConfig, parse_reservoir
from reservoir_hw.testing import golden
from reservoir_hw.testing.conformance import conform

PAGE = Path(__file__).parents[2] / "docs" / "conform.md"
NOISE = 0.003
"""About one percent of the standard deviation of the states."""


class Row(NamedTuple):
    """Where a device is housed, the groups that must fail, and those that may fail with them."""

    house: str
    must: Set[str]
    may: Set[str] = frozenset()


TABLE: dict[Lie, Row] = {
    "none": Row("backend", set()),
    # The first row of a run is the last of the run before, whoever drove that.
    "stale frames": Row(
        "function", {"reset"}, {"continuity", "isolation", "causality", "memory", "stability", "recovery"}
    ),
    # All later drives begin where the last one ended.
    "state not reset": Row(
        "backend",
        {"reset"},
        {"continuity", "causality", "isolation", "memory", "stability", "snapshot", "recovery", "identity"},
    ),
    "leak across the batch": Row("backend", {"isolation"}),
    # A snapshot is taken between two runs, too.
    "off-by-one between chunks": Row("server", {"continuity"}, {"snapshot"}),
    "clip inside the declared range": Row("function", {"range"}),
    "declared range too wide": Row("server", {"range"}),
    "false continuity": Row("server", {"continuity"}, {"snapshot"}),
    "non-deterministic declared deterministic": Row("backend", {"repeatability"}),
    "state lost unnoticed": Row("backend", {"recovery"}),
    "nodes swapped": Row("server", {"identity"}),
    "lock ignored": Row("backend", {"safety"}),
    # A late response is not that of the golden trace, and remembers a step more.
    "latency off by one": Row("backend", {"causality"}, {"memory", "identity"}),
    "unsafe after close": Row("function", {"safety"}),
    "memory longer than declared": Row("backend", {"memory"}),
}


def hil(folder: Path, **more: Any) -> Any:
    actions = {"safe_check": "testing.broken:is_safe", "fault": "testing.broken:fail_once"}
    return {"folder": str(folder), **actions, **more}


@contextmanager
def device(
    lie: Lie, noise: float, house: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReservoirConfig]:
    """The device in its house, with a golden trace of the film before it was broken."""
    start_noise(0)
    with FilmReservoir(FilmConfig(kind="film", noise=noise, hil=hil(folder))) as healthy:
        golden.record(healthy, np.random.default_rng(5).uniform(-0.7, 0.7, (1, 60, 1)), folder / "golden")
    config = FilmConfig(kind="film", lie=lie, noise=noise, hil=hil(folder, golden="golden"))
    if house == "backend":
        yield config
    elif house == "server":
        with ipc_address() as address, served(FilmReservoir(config), address, lease_s=4.0):
            section = {"kind": "zmq", "address": address, "hil": hil(folder, golden="golden")}
            yield parse_reservoir(Document.from_mapping(section, "test"))
    else:
        for name, value in (("FILM_FOLDER", folder), ("FILM_NOISE", noise), ("FILM_LIE", lie)):
            monkeypatch.setenv(name, str(value))
        section = {
            **{name: f"testing.broken:{name}" for name in ("call", "setup_call", "reset_call", "close_call")},
            "kind": "python",
            "nodes": NODES,
            "inputs": 1,
            "simulated": False,
            "continuity": "held",
            "input_range": list(LIMITS),
            "deterministic": not noise,
            "resource": f"film in {folder}",
            "hil": hil(folder),
        }
        yield parse_reservoir(Document.from_mapping(section, "test"))


SLOW = pytest.mark.slow
# In the quick runs only the groups are looked at that may fail; safety, which starts processes, in the slow ones.
STARTS_PROCESSES = ("lock ignored", "unsafe after close")


@pytest.mark.parametrize(
    ("noise", "quick"), [(0.0, True), pytest.param(0.0, False, marks=SLOW), pytest.param(NOISE, False, marks=SLOW)]
)
@pytest.mark.parametrize(
    ("lie", "house"),
    [
        *(pytest.param(lie, row.house, marks=SLOW if lie in STARTS_PROCESSES else ()) for lie, row in TABLE.items()),
        # The healthy one in the other houses, too.
        *(pytest.param("none", house, marks=SLOW) for house in ("function", "server")),
    ],
)
def test_fails_where_it_must_and_nowhere_else(
    lie: Lie, house: str, noise: float, quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = TABLE[lie]
    with device(lie, noise, house, tmp_path, monkeypatch) as config:
        report = conform(config, groups=["repeatability", *(row.must | row.may)] if quick else ())
    failed = set(report.failed_groups)
    assert row.must <= failed, "should have failed"
    assert failed <= row.must | row.may, "should not have failed"
    if house == row.house and not quick:
        in_the_docs(lie, row, noise, failed)


def in_the_docs(lie: Lie, row: Row, noise: float, failed: set[str]) -> None:
    """The table of docs/conform.md holds what was measured; UPDATE_DOCS=1 writes it there.

    With noise some of the groups that may fail do so in some runs only.
    """
    text = PAGE.read_text()
    (line,) = re.findall(rf"(?m)^\| {lie} \|.*$", text)
    *_, quiet, noisy = (cell.strip() for cell in line.strip("|").split("|"))
    if os.environ.get("UPDATE_DOCS"):
        quiet, noisy = (quiet, listed(failed)) if noise else (listed(failed), noisy)
        PAGE.write_text(text.replace(line, f"| {lie} | {row.house} | {listed(row.must)} | {quiet} | {noisy} |"))
    elif not noise:
        assert quiet == listed(failed), "run this file with UPDATE_DOCS=1 and read what has changed"


def listed(groups: Set[str]) -> str:
    return ", ".join(group for group in GROUPS if group in groups) or "none"


@pytest.mark.parametrize("noise", [NOISE, pytest.param(0.0, marks=SLOW)])
@pytest.mark.parametrize(
    ("lie", "group"),
    [
        ("clips at 0.95", "range"),
        ("clips one of three inputs", "range"),
        ("leaks into the middle row", "isolation"),
        ("keeps one node over a reset", "reset"),
        ("detector, not reset", "reset"),
        ("detector, remembers longer", "memory"),
    ],
)
def test_a_small_fault_is_seen(lie: Lie, group: str, noise: float) -> None:
    start_noise(0)
    device = FilmConfig(kind="film", lie=lie, noise=noise, simulated=True, inputs=3)
    report = conform(device, groups=["repeatability", group])
    assert group in report.failed_groups, [one.text for one in report.statements]


@pytest.mark.slow
def test_noise_that_wanders_is_no_fault(tmp_path: Path) -> None:
    start_noise(0)
    device = FilmConfig(kind="film", noise=NOISE, wander=0.01, simulated=True, inputs=3, hil=hil(tmp_path))
    alarms = [
        f"{one.title}: {one.text}"
        for seed in range(12)
        for one in conform(device, groups=["reset", "isolation", "recovery"], seed=seed).alarms
    ]
    assert alarms == []
