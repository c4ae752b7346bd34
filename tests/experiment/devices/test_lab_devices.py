"""A film of a lab that answers late, drifts, and has dead and equal nodes: each is said in a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from shared import narma

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.compare.compare import compare
from reservoir_hw.experiment.devices.info import look_at
from reservoir_hw.experiment.devices.measure import measure
from reservoir_hw.experiment.devices.memory import memory_of
from reservoir_hw.experiment.states.traces.information import describe
from reservoir_hw.testing.conformance import conform
from tests import lab_devices


@pytest.fixture(autouse=True)
def new_film(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test switches a film on."""
    monkeypatch.setattr(lab_devices, "FILM", lab_devices.Film())


def film(params: dict[str, Any] | None = None, **over: Any) -> dict[str, Any]:
    """The file of the film, as the lab would write it."""
    return {
        "kind": "python", "call": "tests.lab_devices:drive", "reset_call": "tests.lab_devices:settle", "inputs": 1,
        "nodes": lab_devices.NODES, "simulated": False, "continuity": "held", "input_range": [-1, 1],
        "params": params or {}, "step_period_s": 1e-5, **over,
    }  # fmt: skip


def written(folder: Path, document: dict[str, Any], name: str = "film") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("late", [3, 6])
def test_a_late_device_is_called_late(late: int, tmp_path: Path) -> None:
    said = f"late by {late} steps"
    with open_reservoir(film({"late": late})) as device:
        assert said in " ".join(look_at(device, "python", seconds=0.2).remarks)
        assert said in " ".join(measure(device, steps=2000, only=["memory_capacity"], folder=tmp_path).warnings)
    report = conform(film({"late": late}), groups=("causality",))
    assert said in " ".join(statement.text for statement in report.alarms)
    told = film({"late": late}, latency_steps=late)
    with open_reservoir(told) as device:
        assert not look_at(device, "python", seconds=0.2).remarks
    # Its pace is not looked at: other tests use the processor, too.
    report = conform({**told, "step_period_s": None})
    assert report.passed, report.against


@pytest.mark.slow
@pytest.mark.parametrize(("noise_v", "relax"), [(1e-4, 0.5), (0.01, 0.5), (0.0, 0.3)])
def test_the_memory_that_is_measured_passes_the_suite(noise_v: float, relax: float) -> None:
    params, found = {"noise_v": noise_v, "relax": relax}, []
    for seed in range(3):
        with open_reservoir(film(params)) as device:
            memory = memory_of(device, 100)
            assert device.at_rest
        assert memory.steps is not None
        assert memory.surely < memory.steps
        found.append(memory)
        report = conform(film(params, memory_steps=memory.steps), groups=("memory",), seed=seed)
        assert report.passed, report.against
    # What one measurement is sure of, another finds; one of three may have met a chance event.
    assert sorted(memory.surely for memory in found)[1] <= sorted(memory.steps for memory in found)[1]
    # A single state of a difference that is left is 2^-steps or so of the film's range.
    left = 2 * (1 - relax) ** found[0].steps
    assert left < max(3 * found[0].threshold, 1e-3)


def test_a_device_that_still_remembers_says_so() -> None:
    with open_reservoir(film({"relax": 0.02})) as device:
        assert memory_of(device, 30).steps is None


@pytest.mark.slow
@pytest.mark.parametrize(("scaling", "out_of_range"), [(1.0, "error"), (1.5, "error"), (1.5, "clip")])
def test_a_range_holds_behind_a_mask(scaling: float, out_of_range: str, tmp_path: Path) -> None:
    """The modulator breaks beyond 0 to 5 V: whatever looks at the device keeps within."""
    mask = {"kind": "uniform", "scaling": scaling, "offset": 2.5, "seed": 3}
    document = film(
        {"refuses": True}, inputs=2, input_range=[0, 5], input_mask=mask, out_of_range=out_of_range, simulated=True
    )
    file = written(tmp_path, document)
    with open_reservoir(document, inputs=3) as device:
        low, high = device.safe_range
        assert low < 0 < high
        info = look_at(device, "python", seconds=0.2)
        assert f"behind which 0 to 5 are declared; {low:.4g} to {high:.4g} are sure" in str(info.sections())
        memory_of(device, 20)
        assert device.counters.clipped == device.counters.faults == 0
        if out_of_range == "error":
            with pytest.raises(ConfigurationError, match=r"beyond the range of the device, .* before its mask"):
                measure(device, input_range=(2 * low, 2 * high), folder=tmp_path)
    found = measure(file, steps=1000, only=["memory_capacity", "echo_state_index"], folder=tmp_path)
    assert not found.reasons
    assert not any("clipped" in warning for warning in found.warnings)
    assert "nodes" in compare(file, file, steps=300, repeats=2, only=["drift"]).metrics
    report = conform({**document, "step_period_s": None})
    assert report.passed, report.against
    assert all(statement.outcome == "passed" for statement in report.statements if statement.group == "range")


def test_a_mask_that_leaves_no_inputs_is_refused() -> None:
    mask = {"kind": "one_to_one", "scaling": 1.0, "offset": -1.0}
    with open_reservoir(film(inputs=2, input_range=[0, 5], input_mask=mask), inputs=2) as device:
        assert device.safe_range == pytest.approx((1.0, 6.0), abs=0.01)
    crossed = {"kind": "uniform", "scaling": [1.0, -1.0], "offset": 9.0}
    with (
        open_reservoir(film(inputs=2, input_range=[0, 5], input_mask=crossed | {"scaling": 0.01}), inputs=2) as device,
        pytest.raises(ConfigurationError, match=r"no inputs are sure to stay .*input_mask.offset: 2.5"),
    ):
        look_at(device, "python", seconds=0.2)


@pytest.mark.parametrize(
    ("params", "gain", "offset"),
    [
        ({"fall": 0.1}, -0.09, 0.0),
        ({"creep_v": 0.01}, 0.0, 0.009),
        ({}, 0.0, 0.0),
        ({"fall": 0.1, "creep_v": 0.01}, -0.09, 0.009),
    ],
)
def test_gain_offset_and_noise_drift_apart(params: dict[str, Any], gain: float, offset: float, tmp_path: Path) -> None:
    """Ten repeats, from the beginning of the first to that of the last: 9 of 10 parts of the drift."""
    steps = 10 * (2 * 200 + 1000)
    with open_reservoir(film({**params, "over": steps, "noise_v": 1e-3})) as device:
        found = measure(device, steps=10_000, only=["drift"], folder=tmp_path)
    drift: Any = found.measured["drift"]
    # Relative to the mean gain, and to the deviation of a node.
    expected = gain / (1 - (0.05 if gain else 0.0))
    assert drift.gain_change == pytest.approx(expected, abs=0.02)
    assert drift.gain_significant.all() == bool(gain)
    assert drift.offset_significant.all() == bool(offset)
    assert not drift.noise_significant.any()
    if offset:
        spread = drift.offset_change.max()
        assert spread > 0.01
    table = next(table for table in found.tables() if table.title == "Drift")
    assert [row[0].split()[0] for row in table.rows] == ["mean", "gain", "offset", "noise"]


def run_of(folder: Path, params: dict[str, Any], steps: int = 6000) -> Experiment:
    reservoir = film({**params, "over": steps}, input_range=None)
    return narma(folder, task={"train_steps": steps}, reservoir=reservoir, run={"chunk_steps": None})


def test_a_long_drive_that_drifts_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A run, a harvest, and a run on what was harvested."""
    params = {"fall": 0.1, "noise_v": 1e-3}
    (warning,) = run_of(tmp_path / "run", params).run().warnings
    match = re.search(r"the gain of 8 of 8 nodes changed \(node \d by (-[\d.]+) ± [\d.]+ %\)", warning)
    assert match
    assert float(match[1]) == pytest.approx(-9, abs=2.5)
    lab_devices.FILM = lab_devices.Film()
    harvested = run_of(tmp_path / "harvest", params)
    harvested.harvest()
    assert "the device drifts: from the first to the last tenth the gain of" in caplog.text
    assert "the gain of 8 of 8 nodes changed" in " ".join(harvested.run().warnings)
    lab_devices.FILM = lab_devices.Film()
    assert not run_of(tmp_path / "steady", {"noise_v": 1e-3}).run().warnings


def test_dead_and_equal_nodes_are_named(tmp_path: Path) -> None:
    """Behind the noise of the card, 0.1 mV."""
    params = {"dead": [4], "twins": [2, 7], "noise_v": 1e-4}
    with open_reservoir(film(params)) as device:
        info = look_at(device, "python", seconds=0.2)
        found = measure(device, steps=2000, only=["consistency"], folder=tmp_path)
    for said in (info.remarks, found.warnings):
        dead, equal = said
        assert re.match(
            r"node 4 does not move: nothing but noise is seen of it \(standard deviation (0.0001|9|1)", dead
        )
        assert equal.startswith("nodes 2 and 7 are equal")
    assert found.nodes is not None
    assert found.nodes.noise == pytest.approx(1e-4, rel=0.1)
    table = next(table for table in found.tables() if table.title == "Nodes")
    assert len(table.rows) == lab_devices.NODES
    assert dict(info.sections()[-2][1])["node 4"].endswith("of the samples at a limit")
    with open_reservoir(film({"noise_v": 1e-4})) as device:
        assert not look_at(device, "python", seconds=0.2).remarks


@pytest.mark.slow
def test_a_comparison_remarks_what_a_measurement_does(tmp_path: Path) -> None:
    """The film forgets after more than 2 nodes' worth of steps."""
    file = written(tmp_path, film({"relax": 0.02}, nodes=8, simulated=True))
    compared = compare(file, file, steps=2000, repeats=2, only=["memory_capacity"])
    alone = measure(file, steps=10_000, only=["memory_capacity"], folder=tmp_path).measured["memory_capacity"].note
    assert "The longest delay, 16, is still remembered: a larger max_delay would find more." in alone
    remarks = next(table for table in compared.tables() if table.title == "Remarks on the measures")
    assert [row[1] for row in remarks.rows] == ["A", "B"]
    assert all("The longest delay, 16, is still remembered" in row[2] for row in remarks.rows)


def test_a_pass_that_was_driven_at_once_has_its_true_pace(tmp_path: Path) -> None:
    task, training = {"train_steps": 3000, "test_steps": 500}, {"priming_passes": 1, "continuous": True}
    reservoir = film(continuity="free_running", input_range=None)
    narma(tmp_path, task=task, reservoir=reservoir, training=training, run={"chunk_steps": 500}).harvest()
    (store,) = (tmp_path / "states").iterdir()
    about = describe(StateStore.open(store))
    paces = [found["written_steps"] / found["driven_s"] for found in about["datasets"].values()]
    # Both were driven in one run: a step took as long in the one as in the other, some ten microseconds.
    assert paces[0] == pytest.approx(paces[1], rel=0.01)
    assert paces[0] < 1e6
    assert json.dumps(about["datasets"]["test"])
