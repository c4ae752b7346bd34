"""Experiments on a function of a lab that a program gives: drives that are shared, chunks that follow the pace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import narma

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.devices.measure import measure
from reservoir_hw.experiment.devices.memory import memory_of
from reservoir_hw.experiment.states.pace import begin
from reservoir_hw.experiment.states.plan import Burst, DriveChunk
from tests.toys import SnapshotToy, Toy


class Loop:
    """A ring of 20 nodes that counts its steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.x = np.zeros(20)

    def measure(self, u: np.ndarray, gain: float) -> np.ndarray:
        self.steps += len(u)
        states = np.empty((len(u), 20))
        for t, value in enumerate(u[:, 0]):
            self.x = 0.8 * np.sin(np.roll(self.x, 1) + gain * np.linspace(-1, 1, 20) * value + 0.4)
            states[t] = self.x
        return states

    def settle(self) -> None:
        self.x = np.zeros(20)


def experiment(folder: Path, loop: Loop, gains: Sequence[float] = (), **over: Any) -> Experiment:
    reservoir = {
        "kind": "python", "call": loop.measure, "reset_call": loop.settle, "nodes": 20, "simulated": True,
        "continuity": "held", "step_period_s": 1e-6, "params": {"gain": 1.0}, "label": "my loop",
        "vary": {"params.gain": gains} if gains else {},
    }  # fmt: skip
    return narma(folder, **{"task": {"train_steps": 300}, "reservoir": reservoir, **over})


def test_points_that_differ_behind_the_states_share_a_drive(tmp_path: Path) -> None:
    """Each has the row that it has alone, and its place in the grid."""
    alone = {}
    for gain in (0.5, 1.0):
        for alpha in (1e-6, 1.0):
            loop = Loop()
            alone[gain, alpha] = experiment(tmp_path, loop, [gain], vary={"readout.alpha": [alpha]}).run().rows[0]
            once = loop.steps
    loop = Loop()
    shared = experiment(tmp_path, loop, [0.5, 1.0], vary={"readout.alpha": [1e-6, 1.0]})
    assert shared.estimate().device_steps == 2 * once
    result = shared.run()
    assert loop.steps == 2 * once
    assert result.rows[0].label == "my loop gain=0.5 alpha=1e-06"
    for row, expected in zip(result.rows, alone.values(), strict=True):
        assert (row.label, row.evaluation.metrics) == (expected.label, expected.evaluation.metrics)
    files = [row["readout"]["file"] for row in result.provenance["rows"]]
    assert len({(result.folder / file).read_bytes() for file in files}) == 4


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"readout": {"kind": "ridge", "washout": 300}}, "readout: washout is 300, and the longest sequence"),
        ({"training": {"continuous": True}, "readout": {"kind": "ridge", "washout": 400}}, "nothing is left to learn"),
    ],
)
def test_what_cannot_be_learned_or_judged_drives_nothing(tmp_path: Path, over: dict[str, Any], message: str) -> None:
    loop = Loop()
    with pytest.raises(ConfigurationError, match=message):
        experiment(tmp_path, loop, **over).run()
    assert loop.steps == 0


@pytest.mark.slow
def test_what_casts_doubt_on_states_is_said_once_for_each_row(pictures: None, tmp_path: Path) -> None:
    """Clipped inputs, a dead node and a railed one, of a drive and of a harvest alike."""

    def faulty(u: np.ndarray) -> np.ndarray:
        states = np.tanh(u + np.linspace(-1, 1, 20)) + 1e-6 * np.random.default_rng(len(u)).normal(size=(len(u), 20))
        states[:, 7] = 0.25
        states[:, 3] = np.clip(states[:, 3], -0.6, -0.5)
        return states

    reservoir = {
        "kind": "python", "call": faulty, "reset": {"kind": "none", "reason": "no memory"}, "nodes": 20,
        "simulated": False, "continuity": "held", "step_period_s": 1e-6, "input_range": [0.0, 0.3],
        "out_of_range": "clip", "vendor": "lab", "model": "A7",
    }  # fmt: skip
    faults = experiment(tmp_path, Loop(), reservoir=reservoir)
    task = faults.points[0].config.task.build()
    driven = [task.train.inputs, task.train.inputs[:, -200:], task.test.inputs]
    expected = sum(np.count_nonzero(u > 0.3) for u in driven)
    result = faults.run()
    clipped, dead, railed = result.warnings
    assert clipped.startswith(f"lab A7: {expected} of 700 input values were clipped to the range 0 to 0.3")
    assert dead.startswith("lab A7: 1 of 20 nodes (7) never moved")
    assert railed.startswith("lab A7: 1 of 20 nodes (3) lay at the end of the converter's range")
    faults.harvest()
    assert faults.run().warnings == result.warnings
    assert dead in (result.folder / "report.html").read_text()
    assert result.metrics["warnings"] == result.warnings


class Slow(Toy):
    """Takes its time for each step."""

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        time.sleep(0.1 * u.shape[1])
        return super()._run(u, out)


@pytest.mark.slow
def test_chunks_follow_the_pace_of_the_device() -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 500, 2))
    bursts = [Burst((DriveChunk(u),))]
    with Slow() as slow:
        steps, begun = begin(slow, bursts, 4096)
        assert 50 <= steps <= 100
        # Nothing is driven for the pace alone: these are the first states of the plan.
        assert begun is not None
        assert slow.counters.steps == begun.shape[1] < 20
        slow.reset()
        assert np.array_equal(begun, slow.run(u[:, : begun.shape[1]]))
    for declared, expected in (({"step_period_s": 0.02}, 500), ({"continuity": "replayed", "memory_steps": 300}, 1200)):
        everything: dict[str, Any] = {"step_period_s": 0.02, **declared}
        with Toy(**everything) as toy:
            assert begin(toy, bursts, 4096) == (expected, None)
            assert not toy.driven
    with SnapshotToy() as frozen, Toy() as fast:
        assert begin(frozen, bursts, 4096) == (4096, None)
        assert begin(fast, bursts, 4096)[0] == 4096
        assert not frozen.driven


@pytest.mark.parametrize(("noise", "expected"), [(0.0, 14), (0.01, 6)])
def test_the_memory_of_a_device_is_measured(noise: float, expected: int) -> None:
    """A past of 1 is 2^-t after t steps: lost below 1e-4 of the spread of the states, or in their noise."""

    class Noisy(Toy):
        def _reset(self, batch: int) -> None:
            super()._reset(batch)
            # Other noise in every drive.
            self.t += 10_000 * len(self.resets)

    with Noisy(noise=noise) as toy:
        found = memory_of(toy, 60)
        assert toy.at_rest
    assert found.steps is not None
    assert abs(found.steps - expected) <= 2
    with Noisy(noise=noise) as toy:
        assert memory_of(toy, 3 if noise else 5).steps is None


def test_a_measurement_keeps_to_its_budget(tmp_path: Path) -> None:
    """Fewer repeats first; what even the fewest exceed is refused before anything is driven."""
    said: list[str] = []
    options: dict[str, Any] = {"only": ["consistency", "memory_capacity"], "folder": tmp_path, "max_delay": 10}
    with Toy(step_period_s=1e-3) as toy:
        whole = measure(toy, steps=2000, on_plan=said.append, **options)
        steps = toy.counters.steps
        assert said[0].startswith(f"{steps:,} device steps, about 0:00:")
        measure(toy, steps=2000, budget=f"{0.6e-3 * steps}s", on_plan=said.append, **options)
        fewer = toy.counters.steps - steps
        assert f"{fewer:,} device steps (with " in said[1]
        assert 0.3 * steps < fewer <= 0.6 * steps
        with pytest.raises(ConfigurationError, match=r"the budget 100 is too small: at least [\d,]+ device steps"):
            measure(toy, steps=2000, budget="100", **options)
        assert toy.counters.steps == steps + fewer
    assert whole.measured.keys() == {"consistency", "memory_capacity"}
