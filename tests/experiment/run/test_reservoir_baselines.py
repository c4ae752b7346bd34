"""Baselines that are reservoirs without a device: rows of the same task with the readout of the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.backends.baselines import Nvar
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.narma import Narma

NVAR: dict[str, Any] = {"kind": "nvar", "lags": 4, "orders": 2}
SIZES = {"kind": "delay_loop", "nodes": 10, "vary": {"nodes": [5, 10]}}


def settings(folder: Path, **over: Any) -> dict[str, Any]:
    return {
        "task": {"kind": "narma", "train_steps": 400, "test_steps": 100},
        "reservoir": {"kind": "delay_loop", "nodes": 10},
        "readout": {"kind": "ridge", "washout": 20, "alpha": 1e-4},
        "baselines": [NVAR],
        "run": {"folder": str(folder), "states": None},
        **over,
    }


def labels(result: Any) -> list[str]:
    return [row.label for row in result.rows]


def test_a_baseline_has_the_readout_and_the_task_of_the_experiment(tmp_path: Path) -> None:
    result = Experiment(settings(tmp_path)).run(report=False)
    assert labels(result) == ["NVAR(14)", "mackey_glass(10)"]
    assert [bool(row.details.get("baseline")) for row in result.rows] == [True, False]
    task = Narma(train_steps=400, test_steps=100)
    with Nvar(1, 4, 2) as nvar:
        states = nvar.run(np.concatenate([task.train.inputs, task.test.inputs], axis=1))
    readout = RidgeReadout(1e-4, washout=20).fit(states[:, :400], task.train.targets)
    expected = task.evaluate(readout.predict(states[:, 400:]))
    assert result.rows[0].evaluation.metrics["nmse"] == pytest.approx(expected.metrics["nmse"], rel=1e-6)
    (record,) = result.provenance["baselines"]
    assert record["reservoir"]["identity"]["model"] == "nvar"


@pytest.mark.slow
def test_what_varies_gives_a_baseline_a_row_only_where_it_is_another_one(tmp_path: Path) -> None:
    vary = {"readout.alpha": [1e-4, 1.0], "task.dataset": [0, 1]}
    two = [NVAR, {**NVAR, "orders": [2], "constant": True}, {**NVAR, "spacing": 2}, "encoder_only"]
    result = Experiment(settings(tmp_path, reservoir=SIZES, vary=vary, baselines=two)).run(report=False)
    own = [row for row in result.rows if row.details.get("baseline")]
    of_nvar = [(row.label, row.point) for row in own if row.label.startswith("NVAR(14) spacing=1")]
    points = [{"readout.alpha": alpha, "task.dataset": data} for alpha in (1e-4, 1.0) for data in (0, 1)]
    names = [f"NVAR(14) spacing=1 alpha={alpha}" for alpha in ("0.0001", "0.0001", "1", "1")]
    assert of_nvar == list(zip(names, points, strict=True))
    encoders = [row.point for row in own if row.label.startswith("encoder only(5)")]
    assert encoders == [{"reservoir.nodes": 5, **point} for point in points]
    assert len(own) == 3 * 4 + 2 * 4
    assert len({row.label for row in own}) == 3 * 2 + 2 * 2


@pytest.mark.slow
def test_the_figure_of_what_varies_is_that_of_the_device(tmp_path: Path) -> None:
    result = Experiment(settings(tmp_path, reservoir=SIZES, baselines=[NVAR, "encoder_only"])).run(report=False)
    (axes,) = result.figures()["vary"].axes
    scores = [row.evaluation.metrics["nrmse"] for row in result.rows if not row.details.get("baseline")]
    assert len(scores) == 2
    np.testing.assert_array_equal(np.asarray(axes.lines[0].get_ydata()), scores)


@pytest.mark.slow
def test_points_that_are_run_alone_share_the_baselines_among_them(tmp_path: Path) -> None:
    vary = {"task.dataset": [0, 1]}
    alone = []
    for number in range(4):
        given = settings(tmp_path, reservoir=SIZES, vary=vary)
        given["run"] = {**given["run"], "point": number}
        alone.append(Experiment(given).run(report=False))
    assert [len(one.rows) for one in alone] == [2, 2, 1, 1]
    whole = Experiment(settings(tmp_path, reservoir=SIZES, vary=vary))
    merged = whole.merge([one.folder for one in alone])
    assert labels(merged) == labels(whole.run(report=False))


def test_a_closed_loop_has_baselines(tmp_path: Path) -> None:
    loop = {"starts": 5, "warmup_steps": 50, "forecast_steps": 100}
    task = {"kind": "lorenz", "train_steps": 500, "closed_loop": loop}
    readout = {"kind": "ridge", "alpha": 1e-6, "washout": 50}
    cubic = {"kind": "nvar", "lags": 2, "orders": 3}
    given = settings(tmp_path, task=task, readout=readout, baselines=[cubic, {"kind": "esn", "nodes": 20}])
    result = Experiment(given).run(report=False)
    assert labels(result) == ["NVAR(83)", "ESN(20)", "mackey_glass(10)"]
    steps = [row.evaluation.metrics["valid_steps"] for row in result.rows]
    assert steps[0] == 100 > max(steps[1:])


def test_an_online_readout_makes_an_online_autoregression(tmp_path: Path) -> None:
    readout = {"kind": "rls", "alpha": 1e-4, "washout": 20, "keep_learning": True}
    result = Experiment(settings(tmp_path, readout=readout)).run(report=False)
    assert result.rows[0].label.startswith("NVAR(14)")
    assert result.rows[0].details["readout"]["kind"] == "rls"


@pytest.mark.slow
def test_a_language_model_is_trained_on_the_encoded_tokens_alone(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the dog that the cat sees runs away from the cat and the dog. " * 60)
    task = {"kind": "text", "corpus": str(tmp_path / "text.txt"), "validation": 0.1, "test": 0.1}
    training = {"gradient": {"epochs": 4, "batch": 8, "context": 16, "learning_rate": 1e-2}}
    device = {"kind": "esn", "nodes": 40, "input_scaling": 0.5}
    given = settings(tmp_path, task=task, reservoir=device, readout={"kind": "linear"}, training=training)
    result = Experiment({**given, "baselines": ["encoder_only"]}).run(report=False)
    assert labels(result) == ["encoder of ESN(40) linear", "ESN(40) linear"]
    alone, device_row = (row.evaluation.metrics for row in result.rows)
    assert alone["parameters"] == device_row["parameters"]
    assert alone["cross_entropy"] > device_row["cross_entropy"]
    assert (result.folder / "readout/baseline-of-000-0.safetensors").is_file()


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"baselines": [{**NVAR, "lags": 200, "orders": 3}]}, "1 input x 200 lags, orders 1 to 3: 1,373,700 features"),
        (
            {"baselines": [{**NVAR, "spacing": 10}]},
            r"baselines: NVAR\(14\): it looks 30 steps back, but readout.washout is 20",
        ),
        (
            {"training": {"test_warmup_steps": 2}},
            r"looks 3 steps back, but training.test_warmup_steps is 2: .* at least 3",
        ),
        (
            {"baselines": [{**NVAR, "lags": 8, "orders": 4}], "readout": {"kind": "ridge", "washout": 20, "alpha": 0}},
            r"alpha is 0, and 495 weights \(494 features and a bias\) cannot be told from 380 samples",
        ),
        (
            {
                "task": {"kind": "lorenz", "closed_loop": {"warmup_steps": 3}},
                "readout": {"kind": "ridge", "washout": 9},
            },
            r"task.closed_loop.warmup_steps is 3: .* at least 4",
        ),
        # As a reservoir of its own it is refused likewise.
        ({"baselines": [], "reservoir": {**NVAR, "lags": 30, "orders": 1}}, r"reservoir: it looks 29 steps back"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_driven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: dict[str, Any], words: str
) -> None:
    from reservoir_hw.core.reservoir import Reservoir

    monkeypatch.setattr(Reservoir, "open", lambda self: pytest.fail("it was opened"))
    with pytest.raises(ConfigurationError, match=words):
        Experiment(settings(tmp_path, **over)).run(report=False)
    assert list(tmp_path.iterdir()) == []
