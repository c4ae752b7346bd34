"""Comparing two devices: what differs by more than repeats do, and that a device does not differ from itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from shared import narma

from reservoir_hw import open_reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.compare import Comparison, compare
from reservoir_hw.experiment.compare.nodes import LEVEL, compare_nodes, p_values, ways_to_deal
from reservoir_hw.experiment.run.learning import evaluations, trained
from reservoir_hw.experiment.states.drive import Recorder, driven
from reservoir_hw.experiment.states.plan import plan_of

LOOP = """\
kind: delay_loop
nodes: {nodes}
mask: {{kind: uniform}}
physics: {{kind: paquot, input_gain: {gain}, phase: 0.2}}
"""
NOISE = "nonidealities: {{loop: {{noise: 0.02}}, seed: {seed}}}\n"
DOUBLES = """\
kind: python
call: compared_lab:measure
reset_call: compared_lab:rest
inputs: 1
nodes: 3
simulated: true
continuity: held
"""
TASK = """\
task: {kind: narma, train_steps: 200, test_steps: 200}
reservoir: {kind: esn, nodes: 3}
readout: {kind: ridge, alpha: 1.0e-4, washout: 20}
vary: {task.dataset: [0, 1]}
"""
QUICK: dict[str, Any] = {"steps": 120, "washout": 30, "repeats": 8, "only": ["consistency", "memory_capacity"]}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str = LOOP, nodes: int = 8, gain: float = 0.5, seed: int = 1) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.format(nodes=nodes, gain=gain, seed=seed))
        return path

    return write


def differs(result: Comparison) -> dict[str, list[str]]:
    return {part: found for part, found in result.above_floor().items() if found}


@pytest.mark.parametrize("noisy", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_device_does_not_differ_from_itself_but_from_another(write: Any, noisy: bool) -> None:
    text = LOOP + NOISE if noisy else LOOP
    (task := Path("task.yaml")).write_text(TASK)
    # Other noise of the same device: as a bench would meet it.
    one, again, other = write("one", text), write("again", text, seed=2), write("other", text, gain=0.7, seed=3)
    result = compare(one, again, task=task if noisy else None, seed=5, **QUICK)
    assert set(result.above_floor()) == {"nodes, raw", "nodes, aligned", "measures"} | ({"task"} if noisy else set())
    assert differs(result) == {}
    assert result.nodes is not None
    assert result.nodes.floor_a is not None
    assert (result.nodes.floor_a > 0).all() == noisy
    if not noisy:
        assert result.nodes.difference.identical
    found = differs(compare(one, other, task=None if noisy else task, **QUICK))
    assert found["nodes, raw"] == ["8 of 8 nodes"]
    assert ("task" in found) != noisy


@pytest.mark.slow
def test_the_command_with_its_report_and_its_twin(pictures: None, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    Path("task.yaml").write_text(TASK)
    write("twin")
    write("bench", LOOP + NOISE + "hil: {{twin: twin.yaml}}\n")
    few = ["--steps", 100, "--washout", 20, "--repeats", 8, "--only", "consistency"]
    done = call_here("compare", "bench.yaml", "--task", "task.yaml", *few, "-o", "kept", "--tolerance", "0.001")
    assert done.returncode == 1, done.stderr
    assert (
        "8 of 8 nodes have a raw NRMSE above the tolerance of 0.001; repeats of one device alone reach" in done.stderr
    )
    for text in ("Task: nrmse", "judged on A", "Nodes that differ most", "Measures", "floor of B (median)"):
        assert text in done.stdout
    assert {path.name for path in Path("kept/figures").iterdir()} == {
        f"{name}.{kind}" for name in ("responses", "nodes", "measures", "task") for kind in ("png", "pdf")
    }
    page = Path("kept/report.html").read_text()
    assert "data:image/png;base64," in page
    assert "Task: nrmse" in page
    found = json.loads(Path("kept/metrics.json").read_text())
    assert (found["status"], found["tolerance"]) == ("complete", 0.001)
    cell = found["task"]["cells"]["nrmse"]
    assert cell["trained_b_judged_b"]["sd"] == 0
    assert cell["trained_a_judged_a"]["sd"] > 0
    assert found["nodes"]["nodes"][0]["floor_a"] > 0 == found["nodes"]["nodes"][0]["floor_b"]
    # What was kept can be compared by itself.
    assert call_here("trace", "diff", "kept/traces/a", "kept/traces/b").returncode == 0
    # The trace in the place of the bench: eight repeats, no longer drive, no task that it was not recorded with.
    Path("replay.yaml").write_text("kind: replay\ntrace: kept/traces/a\n")
    said = call_here("compare", "replay.yaml", "twin.yaml", "--task", "task.yaml", *few, "--repeats", 10, "--json")
    replayed = json.loads(said.stdout)
    assert replayed["nodes"]["repeats"] == {"a": 8, "b": 10}
    assert replayed["nodes"]["nodes"][0]["nrmse"] == pytest.approx(found["nodes"]["nodes"][0]["nrmse"])
    assert "A cannot be driven with the inputs of the task" in replayed["not_compared"]["task"]


@pytest.mark.slow
def test_what_does_not_fit_is_told_before_anything_is_driven(write: Any) -> None:
    write("wide", nodes=9)
    write("bench", LOOP + "hil: {{twin: wide.yaml}}\n")
    write("lonely")
    write("one", LOOP + "inputs: 1\n")
    write("two", "kind: esn\nnodes: 8\ninputs: 2\n")
    Path("task.yaml").write_text(TASK + "sweep: {search: {readout.alpha: [1.0e-9, 1]}}\n")
    for arguments, said in (
        (["bench.yaml"], "bench.yaml:5: hil.twin has 1 inputs and 9 nodes, the device 1 and 8"),
        (["lonely.yaml"], "names no `hil.twin:`"),
        (["lonely.yaml", "wide.yaml", "--tolerance", 1], "--tolerance is about nodes, but lonely.yaml has 8"),
        (["one.yaml", "two.yaml"], "one.yaml takes 1 inputs and two.yaml 2"),
        (["lonely.yaml", "lonely.yaml", "--only", "memory"], "there is no measure 'memory'"),
    ):
        done = call_here("compare", *arguments, "-o", "kept")
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
        assert not Path("kept").exists()
    once: dict[str, Any] = {**QUICK, "repeats": 1}
    result = compare("lonely.yaml", "wide.yaml", task="task.yaml", **once)
    assert result.nodes is None
    assert result.reasons == {"nodes": "nodes cannot be compared one by one: A has 8, B has 9"}
    assert result.task is not None
    assert result.task.p_transfer is None
    table = result.tables()[-1]
    assert "the floor is unknown" in table.note
    assert [row[2 - number] for number, row in enumerate(table.rows)] == ["other nodes", "other nodes"]
    assert set(result.metrics["task"]["cells"]["nrmse"]) == {"trained_a_judged_a", "trained_b_judged_b"}
    assert {"task", "measures"} <= set(result.figures())


@pytest.mark.slow
def test_a_recording_without_repeats_has_no_floor(write: Any, tmp_path: Path) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 90, 1))
    for name, repeats in (("once", 1), ("often", 9)):
        with open_reservoir(write("noisy", LOOP + NOISE), inputs=1) as device, Recorder(device, tmp_path / name):
            for _ in range(repeats):
                device.reset(1)
                device.run(u)
    once, often = (StateStore.open(tmp_path / name) for name in ("once", "often"))
    found = compare_nodes(once, often, washout=10)
    assert found.floor_a is None
    assert found.p_raw is None
    assert found.floor_b is not None
    cells = [row[3] for row in found.tables()[0].rows]
    assert cells == ["unknown", "unknown"]
    assert found.as_dict()["nodes"][0]["floor_a"] is None


@pytest.mark.slow
def test_neither_a_recording_nor_another_precision_is_a_difference(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inputs that are not uniform: with uniform ones the device has another memory.
    u = np.random.default_rng(0).normal(0, 0.2, (1, 400, 1)).clip(-1, 1)

    def recording(name: str, path: Path, repeats: int) -> Path:
        with open_reservoir(path, inputs=1) as device, Recorder(device, tmp_path / name):
            for _ in range(repeats):
                device.reset(1)
                device.run(u)
        return write(f"{name}_replayed", f"kind: replay\ntrace: {name}\n")

    recorded, again = recording("film", write("one", LOOP + NOISE), 9), write("again", LOOP + NOISE, seed=2)
    settings: dict[str, Any] = {"steps": 380, "washout": 20, "only": ["memory_capacity", "signal_to_noise", "drift"]}
    found = compare(recorded, again, repeats=10, **settings)
    assert differs(found) == {}
    assert [len(side.measured) for side in found.sides] == [3, 3]
    assert found.nodes is not None
    assert found.nodes.repeats == (9, 10)
    # A function of a lab takes float64, a simulation float32.
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "compared_lab.py").write_text(
        "def measure(u):\n    return [[x[0]] * 3 for x in u]\n\ndef rest(): pass\n"
    )
    lab, esn = write("lab", DOUBLES), write("esn", "kind: esn\nnodes: 3\n")
    for doubles in (lab, recording("doubles", lab, 2)):
        nodes = compare(doubles, esn, steps=60, washout=20, repeats=2, only=["consistency"]).nodes
        assert nodes is not None
        assert nodes.difference.steps == 120


def test_evaluations_are_those_of_a_run(write: Any) -> None:
    experiment = narma(Path(), reservoir={"nodes": 10}, readout={"kind": "rls", "keep_learning": True})
    config, (point,) = experiment.config, experiment.points
    task = config.task.build()
    bursts = plan_of(point, task)
    with open_reservoir(config.reservoir.for_inputs(1)) as device:
        states = list(driven(device, bursts, lambda steps: None))
    ((_, outputs),) = trained([point], task, states)
    expected = task.evaluate(outputs, "scores").metrics
    # A readout that keeps learning begins both tests as its training left it.
    found = evaluations(point, task, [states], [states, states])
    assert [one.metrics for one in found[0]] == [expected, expected]


def test_false_alarms_are_as_rare_as_they_are_said_to_be() -> None:
    rng = np.random.default_rng(3)
    ways = ways_to_deal(8, 8)
    drawn = rng.standard_normal((400, 16, 5))
    alarms = 0
    for x in drawn:
        alarms += bool((p_values(_share_between(x, ways)) <= 0.05).any())
    # 20 are expected of 400; more than 36 or fewer than 6 would be a chance of 1 in 1000.
    assert 6 <= alarms <= 36
    x = drawn[0]
    x[:8, 2] += 50
    assert np.flatnonzero(p_values(_share_between(x, ways)) <= LEVEL).tolist() == [2]


def _share_between(x: np.ndarray, ways: np.ndarray) -> np.ndarray:
    moved = x - x.mean(axis=0)
    return (np.where(ways, 1, -1) @ moved) ** 2 / (len(x) * (moved**2).sum(axis=0))
