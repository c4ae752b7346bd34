"""`reservoir-hw conform`: healthy devices of every kind pass; wrong requests are told in one sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from served import free_address, served
from testing.broken import FilmConfig, FilmReservoir, start_noise

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.testing import golden
from reservoir_hw.testing.conformance import conform
from reservoir_hw.testing.report import Report

EXAMPLES = Path(__file__).parents[2] / "examples" / "reservoirs"
TORCH = ("gated_esn", "delay_loop")
ESN: dict[str, Any] = {"kind": "esn", "nodes": 20, "inputs": 1, "seed": 3}
# Says on standard error that it is driven, and does once what is asked for.
LAB = """\
import asyncio, sys
import numpy as np

driven = 0

def call(u):
    global driven
    driven += 1
    print("driven", file=sys.stderr, flush=True)
    if driven == 2:
        {once}
    return np.tanh(u @ np.linspace(0.1, 1, 5)[None])

def reset_call():
    pass

def close_call():
    {close}
"""
LAB_FILE = """\
kind: python
call: lab:call
reset_call: lab:reset_call
close_call: lab:close_call
nodes: 5
inputs: 1
simulated: false
continuity: held
deterministic: true
resource: {folder}
"""


def lab(folder: Path, more: str = "", *, once: str = "pass", close: str = "pass") -> None:
    """A device in functions, and its file. Other tests may have theirs open at the same time."""
    (folder / "lab.py").write_text(LAB.format(once=once, close=close))
    (folder / "lab.yaml").write_text(LAB_FILE.format(folder=folder) + more)


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {f"{one['group']}: {one['name']}": one["outcome"] for one in report["statements"]}


def check(report: Report) -> set[str]:
    """Passed, with a reason for each statement that was not looked at; the groups that were."""
    assert report.passed, [(one.title, one.text) for one in report.alarms]
    assert sum(report.counts.values()) == len(report.statements) > 30
    assert all(one.text for one in report.statements if one.outcome != "passed"), "an outcome without its reason"
    return {one.group for one in report.statements if one.outcome == "passed"}


# A noisy device is looked at below.
@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_examples(file: Path) -> None:
    looked_at = check(conform(file))
    assert looked_at >= {"repeatability", "shapes", "reset", "continuity", "isolation", "causality", "memory"}


@pytest.mark.parametrize("kind", ["esn", *(pytest.param(kind, marks=pytest.mark.slow) for kind in TORCH)])
def test_simulations_driven_by_torch(kind: str) -> None:
    looked_at = check(conform({"kind": kind, "nodes": 20, "inputs": 1, "engine": "torch"}))
    assert looked_at >= {
        "repeatability",
        "shapes",
        "reset",
        "continuity",
        "isolation",
        "causality",
        "memory",
        "snapshot",
    }


@pytest.mark.slow
def test_devices_of_other_kinds(tmp_path: Path) -> None:
    config = parse_reservoir(Document.from_mapping(ESN, "test"))
    address = free_address()
    with served(build_reservoir(config), address):
        looked_at = check(conform({"kind": "zmq", "address": address}))
        assert looked_at >= {"reset", "continuity", "isolation", "causality", "snapshot", "safety"}
    devices = [{"reservoir": ESN, "channels": [0]}, {"reservoir": {**ESN, "seed": 4}, "channels": [0]}]
    assert check(conform({"kind": "parallel", "devices": devices})) >= {"reset", "continuity", "isolation"}
    noisy = parse_reservoir(Document.from_mapping({**ESN, "nonidealities": "memristive_film"}, "test"))
    for name, device in (("exact", config), ("noisy", noisy)):
        with build_reservoir(device) as reservoir, Recorder(reservoir, tmp_path / name):
            for _ in range(3):
                reservoir.reset(1)
                reservoir.run(np.random.default_rng(0).uniform(-1, 1, (1, 100, 1)))
        # The repetitions of a drive are of no concern: it is rewound.
        report = conform({"kind": "replay", "trace": str(tmp_path / name)})
        assert check(report) >= {"repeatability", "shapes", "continuity", "snapshot", "identity"}
    # A recording knows no other inputs: what needs some is not offered, with that reason.
    assert {"reset", "causality"} <= {one.group for one in report.statements if "recording" in one.text}


@pytest.mark.slow
def test_100_runs_on_a_healthy_noisy_device(capsys: pytest.CaptureFixture[str]) -> None:
    # All groups but those that start processes.
    device = FilmConfig(kind="film", noise=0.02, simulated=True, inputs=1)
    found = []
    for seed in range(100):
        start_noise(seed)
        found += [f"seed {seed}: {one.title}: {one.text}" for one in conform(device, seed=seed).alarms]
    with capsys.disabled():
        print(f"\n100 runs, {len(found)} with an alarm {found}")  # noqa: T201
    assert len(found) <= 3


# Among the slow tests, which run one at a time: beside another test it would measure that one.
@pytest.mark.slow
def test_the_suite_costs_little_beside_the_device(tmp_path: Path) -> None:
    device = FilmConfig(kind="film", noise=0.003, simulated=True, inputs=1, step_s=0.001)
    started, before = time.perf_counter(), FilmReservoir.seconds
    report = conform(device, budget=6000)
    seconds, steps_s = time.perf_counter() - started, FilmReservoir.seconds - before
    driven = sum(one.device_steps for one in report.statements)
    assert driven > 3000
    assert steps_s >= driven * device.step_s
    assert seconds < 1.3 * steps_s, f"{seconds:.2f} s, {steps_s:.2f} s of them for {driven} steps"


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").write_text("kind: delay_loop\nnodes: 20\nhil: {not_offered: {timing: no clock at hand}}\n")
    done = call_here("conform", "loop.yaml", "-o", "report", "--junit", "junit.xml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "device steps" in done.stderr.splitlines()[0]
    assert found["counts"]["not offered"] >= 1
    timing = next(one for one in found["statements"] if one["group"] == "timing")
    assert (timing["outcome"], timing["text"], timing["device_steps"]) == ("not offered", "no clock at hand", 0)
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert "http" not in page
    names = (tmp_path / "junit.xml").read_text()
    assert names.count("<testcase") == len(found["statements"])
    assert 'name="test_golden_trace"' in names
    # The settings and plugins of a folder are for the tests of its owner.
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -x -n 4\nfilterwarnings = error\npython_files = nothing\n"
    )
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not for you')\n")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTEST_ADDOPTS", "--nonsense")
        again = call_here("conform", "loop.yaml", "--json", "--baseline", "report/report.json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert outcomes(json.loads(again.stdout)) == outcomes(found)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", ["--group", "restet"], "error: no group restet; there are repeatability, declaration"),
        ("", ["--budget", "50"], "error: a budget of 50 device steps is too small"),
        ("", ["--budget", "soon"], "error: 'soon' is no budget: give device steps (20000), or a time"),
        ("", ["--baseline", "lab.yaml"], "error: baseline lab.yaml: it is no report.json"),
        ("", ["--baseline", "old.json"], "error: baseline old.json: it is a report of version 0"),
        (
            "",
            ["--baseline", "half.json"],
            "half.json: it is no report.json of `reservoir-hw conform` (statements.0.group",
        ),
        ("", ["--junit", "."], "error: .: the JUnit XML cannot be written there"),
        ("", ["-o", "lab.py"], "error: lab.py cannot be made: File exists; name another with -o"),
        ("not_offered: {reset: ''}", [], "say why the device does not offer it"),
        ("not_offered: {restet: no}", [], "restet"),
        ("golden: nothing", [], "nothing is not a store of states"),
        ("golden: lab.py", [], "it is a file"),
        ("golden: trace", [], "trace was recorded with 1 inputs and 20 nodes, the device has 1 and 5"),
        ("safe_check: lab:nothing", [], "error: hil.safe_check: lab has no function 'nothing'"),
        ("fault: [./nothing, now]", [], "error: hil.fault: './nothing now' cannot be started in "),
    ],
)
def test_wrong_requests(tmp_path: Path, text: str, options: list[str], said: str) -> None:
    lab(tmp_path, f"hil: {{{text}}}\n")
    (tmp_path / "old.json").write_text(json.dumps({"version": 0, "statements": []}))
    (tmp_path / "half.json").write_text(json.dumps({"version": 1, "statements": [{"outcome": "passed"}], "device": {}}))
    if text == "golden: trace":
        with build_reservoir(parse_reservoir(Document.from_mapping(ESN, "test"))) as other:
            golden.record(other, np.zeros((1, 30, 1)), tmp_path / "trace")
    done = call_here("conform", "lab.yaml", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "driven" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("error", ["asyncio.CancelledError", "GeneratorExit"])
def test_a_device_that_ends_its_test_fails(tmp_path: Path, error: str) -> None:
    lab(tmp_path, once=f"raise {error}", close="raise OSError('the supply stays on')")
    done = call_here("conform", "lab.yaml", "--group", "repeatability", "--json", "--junit", "junit.xml", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    first, last = json.loads(done.stdout)["statements"]
    assert first["outcome"] == last["outcome"] == "failed"
    assert first["text"].startswith(f"it did not end: {error.rpartition('.')[2]}")
    assert last["name"] == "last close"
    assert "the supply stays on" in last["text"]
    assert "the supply stays on" in (tmp_path / "junit.xml").read_text()


def test_what_was_found_before_an_interruption_is_kept(tmp_path: Path) -> None:
    lab(tmp_path, once="raise KeyboardInterrupt")
    done = call_here("conform", "lab.yaml", "-o", "fresh", cwd=tmp_path)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    found = json.loads((tmp_path / "fresh" / "report.json").read_text())
    assert found["interrupted"]
    assert not found["passed"]
    assert set(outcomes(found).values()) == {"not looked at"}
    assert "interrupted: " in (tmp_path / "fresh" / "report.html").read_text()


@pytest.mark.parametrize(("budget", "spent"), [(9000, False), (1500, True)])
def test_a_device_that_scatters_unsaid_stays_within_the_budget(budget: int, spent: bool) -> None:
    device = FilmConfig(kind="film", lie="non-deterministic declared deterministic", simulated=True, inputs=1)
    plans: list[str] = []
    shown: list[tuple[int, int]] = []
    report = conform(
        device,
        groups=["memory", "reset", "continuity", "stability"],
        budget=budget,
        on_plan=plans.append,
        progress=lambda what, done, total: shown.append((done, total)),
    )
    driven = sum(one.device_steps for one in report.statements)
    assert driven <= report.plan["device_steps"] <= budget
    assert all(done <= total for done, total in shown)
    assert len(plans) == 2
    assert report.statements[0].outcome == "failed"
    assert {one.outcome for one in report.alarms[1:]} == ({"inconclusive"} if spent else set())
    assert ("the budget of 1,500" in report.plan["weaker"]) == spent
