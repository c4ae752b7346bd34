"""Repeats of a device: `run.draws`, and knobs that `vary` turns, on a device whose faults are planted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call_here
from lab_with_knobs import Lab
from served import ipc_address, served

from reservoir_hw import Experiment
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.experiment.configuration.experiment import grid
from reservoir_hw.experiment.sweeps.sweep import Sweep
from reservoir_hw.tasks.report import spread_of

BIASES = [round(0.1 * n, 1) for n in range(1, 13)]
NOISY_ESN = {"kind": "esn", "nodes": 10, "nonidealities": {"readout": {"noise": 0.01}}}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def experiment(reservoir: dict[str, Any], draws: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "task": {"kind": "narma", "order": 3, "train_steps": 300, "test_steps": 200},
        "reservoir": reservoir,
        "readout": {"kind": "ridge", "alpha": 1e-6, "washout": 20},
        "training": {"test_warmup_steps": 20},
        "run": {"draws": draws, "folder": "runs", "states": None},
        **more,
    }


def run(reservoir: dict[str, Any], draws: int = 1, **more: Any) -> Any:
    return Experiment(experiment(reservoir, draws, **more)).run(lambda *_: None, report=False)


def scores(lab: Lab, draws: int, biases: list[float] = BIASES) -> np.ndarray:
    """(draws, biases) of the score."""
    result = run(lab.file(vary={"knobs.bias_v": biases}), draws)
    found = np.full((draws, len(biases)), np.nan)
    for row in result.rows:
        at = biases.index(row.point["reservoir.knobs.bias_v"])
        found[row.point.get("run.draw", 0), at] = row.evaluation.metrics["nrmse"]
    return found


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """χ² of the difference of two curves, each (draws, points), of which a common offset does not count."""
    variance = one.var(0, ddof=1) / len(one) + other.var(0, ddof=1) / len(other)
    difference = one.mean(0) - other.mean(0)
    difference = difference - np.average(difference, weights=1 / variance)
    return float(np.sum(difference**2 / variance))


@pytest.mark.slow
def test_a_sweep_of_twelve_values_is_one_opening_with_ramps() -> None:
    lab = Lab(noise=0.01)
    found = scores(lab, 5)
    assert (lab.log.count("open"), lab.log.count("close")) == (1, 1)
    assert np.isfinite(found).all()
    assert found.std(0, ddof=1).min() > 0
    set_to = [float(said.split()[1]) for said in lab.log if said.startswith("bias")]
    assert np.abs(np.diff(set_to)).max() <= 0.25 + 1e-9
    # Each value is approached by way of the highest and then the lowest, so that the way there is the same.
    ways = " ".join(said.removeprefix("bias ") for said in lab.log if said.startswith(("bias", "rest")))
    assert ways.count("0.1 0.3 0.55 0.75 1 1.2") == 60 + 5
    assert lab.log[-2:] == ["bias 0", "close"]


@pytest.mark.slow
def test_error_bars_are_those_of_the_planted_noise() -> None:
    """Of other noise of the same size, many draws; 12 points, so that χ² is 12 ± 5 (5 draws: somewhat more)."""
    few, many = scores(Lab(noise=0.02, seed=1), 5), scores(Lab(noise=0.02, seed=2), 15)
    assert 3 < distance(few, many) < 40
    pooled = np.sqrt(few.var(0, ddof=1).mean())
    assert pooled == pytest.approx(np.sqrt(many.var(0, ddof=1).mean()), rel=0.35)
    # Twice the noise is not within these bars.
    assert distance(few, scores(Lab(noise=0.04, seed=3), 5)) > 45


@pytest.mark.slow
def test_without_noise_the_bars_are_within_the_step_of_the_converter() -> None:
    found = scores(Lab(step_v=1 / 1024), 3)
    assert (found == found[0]).all()
    assert np.abs(found - scores(Lab(), 2)[:1]).max() < 0.05


@pytest.mark.slow
def test_hysteresis_and_drift_do_not_bend_the_curve() -> None:
    upwards, downwards = (scores(Lab(hysteresis=0.1), 2, biases) for biases in (BIASES, BIASES[::-1]))
    assert (upwards == upwards[0]).all()
    assert np.array_equal(upwards, downwards[:, ::-1])
    # A fifth of the gain is lost; all points lose it alike.
    steady, drifting = scores(Lab(noise=0.02, seed=4), 5), scores(Lab(noise=0.02, drift=0.001, seed=5), 5)
    assert distance(drifting, steady) < 40


def test_the_spreads_of_device_and_data_are_said_apart() -> None:
    result = run(Lab(noise=0.02).file(), 4, vary={"task.dataset": [0, 1, 2]})
    found = spread_of(result.rows, "nrmse")
    assert found is not None
    assert found.over_data is not None
    assert found.of_device is not None
    values = np.array([row.evaluation.metrics["nrmse"] for row in result.rows]).reshape(4, 3)
    assert found.of_device == pytest.approx(np.sqrt(values.var(0, ddof=1).mean()))
    assert found.over_data == pytest.approx(values.mean(0).std(ddof=1))
    assert "(device ± " in result.tables()[0].rows[0][3]
    assert "between draws of the same point" in result.tables()[0].note
    frame = result.to_frame()
    assert list(frame["run.draw"]) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_points_that_are_equal_are_no_repeats() -> None:
    for vary, said in (
        ({"task.dataset": [0, 0, 1]}, r"points 0 and 1 of vary are equal \(dataset 0\).*run\.draws: N"),
        ([{"readout": {"kind": "ridge", "alpha": 1, "label": name}} for name in "ab"], "points 0 and 1 .* are equal"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            grid(Document.from_mapping(experiment(NOISY_ESN, vary=vary), "test"))
    # Fifteen readouts are one drive.
    lab = Lab(noise=0.01)
    result = run(lab.file(), vary={"readout.alpha": [10.0**-n for n in range(15)]})
    assert len(result.rows) == 15
    one = Lab()
    run(one.file())
    assert lab.log.count("rest") == one.log.count("rest")


@pytest.mark.parametrize(
    ("reservoir", "said"),
    [
        ({"kind": "esn", "nodes": 10}, r"draws: ESN\(10\) answers every drive alike"),
        (Lab().file(deterministic=True), "draws: interferometers answers every drive alike"),
    ],
)
def test_draws_that_would_show_nothing_are_refused(reservoir: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(reservoir, 2)


def test_draws_of_a_recording_are_refused() -> None:
    recorded = experiment(NOISY_ESN)
    recorded["run"]["record"] = "trace"
    Experiment(recorded).run(lambda *_: None, report=False)
    with pytest.raises(ConfigurationError, match="draws: a recording holds one drive of its device"):
        run({"kind": "replay", "trace": "trace"}, 2)


def test_draws_of_a_simulation_have_noise_of_their_own_however_they_are_run() -> None:
    whole = [row.evaluation.metrics["nrmse"] for row in run(NOISY_ESN, 3).rows]
    assert len(set(whole)) == 3
    apart = []
    for number in range(3):
        one = experiment(NOISY_ESN, 3)
        one["run"]["point"] = number
        apart.append(Experiment(one).run(lambda *_: None, report=False).rows[0].evaluation.metrics["nrmse"])
    assert apart == whole
    with ipc_address() as address, served(build_reservoir(reservoir_config({**NOISY_ESN, "inputs": 1})), address):
        there = run({"kind": "zmq", "address": address}, 3)
    assert [row.evaluation.metrics["nrmse"] for row in there.rows] == whole


def test_a_served_device_is_turned_like_one_that_is_here() -> None:
    here, there = Lab(noise=0.01), Lab(noise=0.01)
    expected = scores(here, 2, [0.3, 0.6])
    with ipc_address() as address, served(build_reservoir(reservoir_config(there.file())), address):
        there.log.clear()
        there.random = np.random.default_rng(0)
        result = run({"kind": "zmq", "address": address, "vary": {"knobs.bias_v": [0.3, 0.6]}}, 2)
    assert there.log.count("open") == 1
    assert [row.label for row in result.rows] == ["interferometers bias_v=0.3 V", "interferometers bias_v=0.6 V"] * 2
    assert [row.evaluation.metrics["nrmse"] for row in result.rows] == expected.ravel().tolist()
    monitors = [record["reservoir"]["monitors"]["temperature"] for record in result.provenance["rows"]]
    assert [set(one["values"]) - {21.0} for one in monitors] == [{21.5}, {23.0}, {21.5}, {23.0}]


def test_each_draw_has_a_store() -> None:
    lab = Lab(noise=0.01)
    file = experiment(lab.file(vary={"knobs.bias_v": [0.3, 0.6]}), 2)
    file["run"]["states"] = "states"
    stores = Experiment(file).harvest(lambda *_: None)
    assert len({store.path for store in stores}) == 4
    assert (lab.log.count("open"), lab.log.count("close")) == (1, 1)
    result = Experiment(file).run(lambda *_: None, report=False)
    assert lab.log.count("open") == 1
    assert len({row.evaluation.metrics["nrmse"] for row in result.rows}) == 4


def test_a_fault_closes_the_device_and_keeps_what_was_found() -> None:
    lab = Lab(noise=0.01)
    device = Experiment(experiment(lab.file(vary={"knobs.bias_v": [0.3, 0.6]}), 2))

    def stick(row: Any) -> None:
        lab.stuck = True

    with pytest.raises(DeviceFault, match="knob bias_v"):
        device.run(lambda *_: None, report=False, on_row=stick)
    assert device.result is not None
    assert (len(device.result.rows), lab.log[-1]) == (1, "close")


@pytest.mark.slow
def test_a_sweep_turns_a_knob_without_opening_again() -> None:
    lab = Lab(noise=0.01)
    search = {"knobs.bias_v": {"low": 0.0, "high": 1.5, "step": 0.05}}
    result = Sweep(experiment(lab.file(search=search), sweep={"trials": 5, "pruning": "none"})).run()
    assert len(result.rows) == 5
    assert (lab.log.count("open"), lab.log.count("close")) == (1, 1)


@pytest.mark.parametrize("draws", [1, 2])
def test_the_estimate_knows_what_stays_open(draws: int) -> None:
    lab, ends = Lab(), []
    file = lab.file(reset={"kind": "washout", "steps": 7, "probe_steps": 5}, vary={"knobs.bias_v": [0.3, 0.6, 0.9]})
    del file["reset_call"]
    device = Experiment(experiment(file, draws))
    expected = device.estimate().device_steps
    device.run(lambda what, done, total: ends.append((done, total)), report=False)
    assert (expected, *ends[-1]) == (lab.steps,) * 3


def test_units_and_monitors_are_drawn(tmp_path: Path) -> None:
    lab = Lab(noise=0.01)
    result = Experiment(experiment(lab.file(vary={"knobs.bias_v": [0.3, 1.4]}), 2)).run(lambda *_: None)
    figures = result.figures()
    (axes,) = figures["vary"].axes
    assert axes.get_xlabel() == "reservoir.knobs.bias_v (V)"
    assert "bars: standard deviation between draws" in axes.get_title(loc="left")
    assert figures["monitors"].axes[0].get_ylabel() == "temperature (°C)"
    assert any("monitor temperature was between" in warning for warning in result.warnings)
    assert "bias_v=1.4 V" in result.tables()[0].rows[1][0]
    json.dumps(result.metrics)


def test_a_number_laid_over_a_knob_is_its_value(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(
        "kind: python\ncall: numpy:tanh\nnodes: 1\ninputs: 1\nsimulated: false\ncontinuity: held\n"
        "reset: {kind: none, reason: no memory}\nlabel: film\n"
        "knobs: {gate: {set: builtins:print, value: 0.5, limits: [0, 1]}}\n"
    )
    (tmp_path / "e.yaml").write_text(json.dumps(experiment({"kind": "esn", "nodes": 5})))
    told = Experiment.from_file("e.yaml", reservoir="lab.yaml", set={"reservoir.knobs.gate": 0.7}, environment={})
    assert told.config.reservoir.knob_values == {"gate": 0.7}
    assert told.config.reservoir.knobs["gate"].approach_from == 0.5  # pyright: ignore[reportAttributeAccessIssue]
    done = call_here("check", "e.yaml", "--reservoir", "lab.yaml", "--set", "reservoir.knobs.gate=1.7")
    assert done.returncode == 2
    assert "1.7 lies beyond limits [0, 1]" in done.stderr
