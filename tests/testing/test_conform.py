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
from testing.broken import FilmConfig

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.experiment.states.record import Recorder
from reservoir_hw.testing.conformance import conform
from reservoir_hw.testing.report import Report

EXAMPLES = Path(__file__).parents[2] / "examples" / "reservoirs"
ESN: dict[str, Any] = {"kind": "esn", "nodes": 20, "inputs": 1, "seed": 3}


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {f"{one['group']}: {one['name']}": one["outcome"] for one in report["statements"]}


def check(report: Report) -> set[str]:
    """Passed, with a reason for each statement that was not looked at; the groups that were."""
    assert report.passed, [(one.title, one.text) for one in report.alarms]
    assert sum(report.counts.values()) == len(report.statements) > 30
    assert all(one.text for one in report.statements if one.outcome != "passed"), "an outcome without its reason"
    return {one.group for one in report.statements if one.outcome == "passed"}


# All of them in `make test-slow`; a deterministic and a noisy one always.
@pytest.mark.parametrize(
    "name",
    [
        "delay_loop",
        "memristive",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fpga", "gated_esn", "photonic")),
    ],
)
def test_examples(name: str) -> None:
    looked_at = check(conform(EXAMPLES / f"{name}.yaml"))
    assert looked_at >= {"repeatability", "shapes", "reset", "continuity", "isolation", "causality", "memory"}


def test_every_example_is_looked_at() -> None:
    named = {"delay_loop", "memristive", "fpga", "gated_esn", "photonic"}
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == named


def test_devices_of_other_kinds(tmp_path: Path) -> None:
    config = parse_reservoir(Document.from_mapping(ESN, "test"))
    address = free_address()
    with served(build_reservoir(config), address):
        looked_at = check(conform({"kind": "zmq", "address": address}))
        assert looked_at >= {"reset", "continuity", "isolation", "causality", "snapshot", "safety"}
    devices = [{"reservoir": ESN, "channels": [0]}, {"reservoir": {**ESN, "seed": 4}, "channels": [0]}]
    assert check(conform({"kind": "parallel", "devices": devices})) >= {"reset", "continuity", "isolation"}
    with build_reservoir(config) as reservoir, Recorder(reservoir, tmp_path / "trace"):
        for _ in range(2):
            reservoir.reset(1)
            reservoir.run(np.random.default_rng(0).uniform(-1, 1, (1, 100, 1)))
    report = conform({"kind": "replay", "trace": str(tmp_path / "trace")})
    assert check(report) >= {"repeatability", "shapes", "continuity", "snapshot", "identity"}
    # A recording knows no other inputs: what needs some is not offered, with that reason.
    assert {"reset", "causality"} <= {one.group for one in report.statements if "recording" in one.text}


def alarms(runs: int) -> list[str]:
    """What was held against a healthy noisy device; all groups but those that start processes."""
    device = FilmConfig(kind="film", noise=0.02, simulated=True, inputs=1)
    reports = [conform(device, seed=seed) for seed in range(runs)]
    return [f"seed {seed}: {one.title}: {one.text}" for seed, report in enumerate(reports) for one in report.alarms]


def test_10_runs_on_a_healthy_noisy_device() -> None:
    assert alarms(10) == []


@pytest.mark.slow
def test_100_runs_on_a_healthy_noisy_device(capsys: pytest.CaptureFixture[str]) -> None:
    found = alarms(100)
    with capsys.disabled():
        print(f"\n100 runs, {len(found)} with an alarm {found}")  # noqa: T201
    assert len(found) <= 3


def test_the_suite_costs_little_beside_the_device(tmp_path: Path) -> None:
    device = FilmConfig(kind="film", noise=0.003, simulated=True, inputs=1, step_s=0.001)
    started = time.perf_counter()
    report = conform(device, budget=6000)
    seconds = time.perf_counter() - started
    driven = sum(one.device_steps for one in report.statements)
    assert driven > 3000
    assert seconds < 1.3 * driven * device.step_s, f"{seconds:.2f} s for {driven} steps"


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
    assert (tmp_path / "junit.xml").read_text().count("<testcase") == len(found["statements"])
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


def test_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "film.yaml").write_text("kind: esn\nnodes: 20\nnonidealities: memristive_film\n")
    done = call_here("conform", "film.yaml", "--group", "repeatability", "-o", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    earlier = json.loads((tmp_path / "report.json").read_text())
    for name in ("value", "low", "high"):
        earlier["statements"][0][name] /= 10
    (tmp_path / "better.json").write_text(json.dumps(earlier))
    again = call_here("conform", "film.yaml", "--group", "repeatability", "--baseline", "better.json", cwd=tmp_path)
    assert again.returncode == 1
    assert "worse than the baseline: repeatability: same drive again: " in again.stderr


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("kind: delay_loop", ["--group", "restet"], "error: no group restet; there are repeatability, declaration"),
        ("kind: delay_loop", ["--budget", "50"], "error: a budget of 50 device steps is too small"),
        ("kind: delay_loop", ["--budget", "soon"], "error: 'soon' is no budget: give device steps (20000), or a time"),
        ("kind: delay_loop", ["--baseline", "d.yaml"], "error: baseline d.yaml: it is no report.json"),
        ("kind: delay_loop", ["--baseline", "old.json"], "error: baseline old.json: it is a report of version 0"),
        ("kind: delay_loop\nhil: {not_offered: {reset: ''}}", [], "say why the device does not offer it"),
        ("kind: delay_loop\nhil: {not_offered: {restet: no}}", [], "restet"),
    ],
)
def test_wrong_requests(tmp_path: Path, text: str, options: list[str], said: str) -> None:
    (tmp_path / "d.yaml").write_text(f"{text}\nnodes: 5\n")
    (tmp_path / "old.json").write_text(json.dumps({"version": 0, "statements": []}))
    done = call_here("conform", "d.yaml", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("kind: zmq\naddress: tcp://127.0.0.1:9\ntimeout_s: 0.2\n")
    done = call_here("conform", "d.yaml", cwd=tmp_path)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
