"""`kind: trace`: recall and prediction of what a trace was driven with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from recorded_store import recorded

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.trace import Trace, target_series

STEPS = 300
U = generator(1, "trace").uniform(-1, 1, (2, STEPS, 2)).astype(np.float32)


def made(path: Path, memory: int = 3, dtype: Any = "float32") -> str:
    """A trace of a shift register of channel 1 with `memory` places."""
    x = np.stack([np.roll(U[..., 1], k, axis=1) for k in range(memory)], axis=-1)
    return recorded(path, [(U, x)], chunk=100, dtype=dtype).path


def test_splits(tmp_path: Path) -> None:
    task = Trace(trace=made(tmp_path / "t"), train_steps=100, test_steps=150, delays=[0, 4, -2], sequence=1, channel=1)
    np.testing.assert_array_equal(task.train.inputs, U[1:, :100])
    np.testing.assert_array_equal(task.test.inputs, U[1:, 100:250])
    u = U[1, :, 1]
    np.testing.assert_array_equal(task.test.targets[0], np.stack([u[100:250], u[96:246], u[102:252]], axis=1))
    np.testing.assert_array_equal(task.train.targets[0, 4:, 1], u[:96])
    assert np.isnan(task.train.targets[0, :4, 1]).all()
    assert (task.inputs, task.outputs) == (2, 3)
    assert Trace(trace=(task_path := made(tmp_path / "u")), train_steps=100, delays=[-10]).test.inputs.shape[1] == 190
    assert Trace(trace=task_path, train_steps=100).test.inputs.shape[1] == 200


def test_metrics(tmp_path: Path) -> None:
    task = Trace(trace=made(tmp_path / "t"), train_steps=100, delays=[0, 3, -1])
    outputs = task.test.targets.astype(np.float64)
    outputs[..., 1] *= -0.5
    outputs[..., 2] = 0.3
    metrics = task.evaluate(outputs).metrics
    assert metrics["r2/0"] == pytest.approx(1)
    assert metrics["nrmse/0"] == pytest.approx(0)
    assert metrics["r2/3"] == pytest.approx(1)
    assert metrics["correlation/3"] == pytest.approx(-1)
    assert metrics["nrmse/3"] > 1
    assert metrics["r2/-1"] == pytest.approx(0, abs=1e-12)
    assert metrics["nrmse/-1"] > 1


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"train_steps": 299}, "has 300 steps"),
        ({"test_steps": 201}, "has 300 steps"),
        ({"delays": [-50], "test_steps": 151}, "of which the last 50 are only predicted"),
        ({"sequence": 2}, "has 0 to 1"),
        ({"channel": 2}, "has 0 to 1"),
        ({"dataset": "001"}, "no data set '001'; there are: 000"),
        ({"trace": "nowhere"}, "not a store of states"),
    ],
)
def test_what_was_not_recorded_is_refused(tmp_path: Path, over: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trace(**{"trace": made(tmp_path / "t"), "train_steps": 100, **over})


def run(tmp_path: Path, **over: Any) -> dict[str, float]:
    experiment = Experiment(
        {
            "task": {"kind": "trace", "train_steps": 150, **over.pop("task")},
            "readout": {"kind": "ridge", "alpha": 1e-6, **over.pop("readout")},
            "training": {"continuous": True},
            "run": {"folder": str(tmp_path / "runs"), "states": None, "chunk_steps": 64},
            **over,
        }
    )
    return experiment.run(report=False).metrics["rows"][-1]["metrics"]


def test_a_replayed_trace_is_judged_in_an_experiment(tmp_path: Path) -> None:
    trace = made(tmp_path / "t", memory=3)
    metrics = run(
        tmp_path,
        task={"trace": trace, "channel": 1, "delays": [0, 1, 2, 3]},
        reservoir={"kind": "replay", "trace": trace},
        readout={"washout": 4},
    )
    assert [round(metrics[f"r2/{k}"], 3) for k in range(3)] == [1, 1, 1]
    assert metrics["r2/3"] < 0.2


@pytest.mark.parametrize(
    ("delays", "washout", "needed"),
    [([0, 5, 2], 0, 5), ([5], 4, 5), ([0, 1], 0, 1), ([-2, 0], 0, None), ([5], 5, None)],
)
def test_what_came_before_the_recording_needs_a_washout(
    tmp_path: Path, delays: list[int], washout: int, needed: int | None
) -> None:
    trace = made(tmp_path / "t")
    settings: dict[str, Any] = {
        "task": {"trace": trace, "channel": 1, "delays": delays},
        "reservoir": {"kind": "replay", "trace": trace},
        "readout": {"washout": washout},
    }
    if needed is None:
        run(tmp_path, **settings)
        return
    message = rf"readout: washout is {washout}, .* readout.washout to at least {needed}$"
    with pytest.raises(ConfigurationError, match=message):
        run(tmp_path, **settings)
    # Nothing was driven for it.
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", ["011", pytest.param("074", marks=pytest.mark.slow)])
def test_recall_of_the_measured_nanowire_networks(tmp_path: Path, number: str) -> None:
    trace = imported(tmp_path, f"nanowire_{number}")
    metrics = run(
        tmp_path,
        task={"trace": trace, "train_steps": 2000, "test_steps": 1000},
        reservoir={"kind": "replay", "trace": trace},
        readout={"washout": 200},
    )
    expected = {"011": [1, 0.998, 0.754, 0.257, 0.148, 0.092], "074": [1, 0.993, 0.871, 0.261, 0.257, 0.206]}
    np.testing.assert_allclose([metrics[f"r2/{k}"] for k in range(6)], expected[number], atol=0.002)


def imported(tmp_path: Path, name: str) -> str:
    if "RESERVOIR_HW_DATA" not in os.environ:
        pytest.skip("RESERVOIR_HW_DATA does not name the folder of the measured data")
    from reservoir_hw.experiment.states.traces import import_trace

    folder = Path(__file__).parents[2] / "examples" / "measured_devices" / "mappings"
    return import_trace(folder / f"{name}.yaml", tmp_path / "trace").path


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_nonlinear_targets(delay: int) -> None:
    """Beside loops that are written from the definitions."""
    u = np.random.default_rng(4).uniform(-0.5, 2.0, 50)
    v = (u - u.min()) / (u.max() - u.min())
    narma = [0.0, 0.0]
    for value in v / 2:
        narma.append(0.4 * narma[-1] + 0.4 * narma[-1] * narma[-2] + 0.6 * value**3 + 0.1)
    for t in range(delay, 40):
        expected = {
            "recall": u[t - delay],
            "product": u[t] * u[t - delay],
            "parity": (-1.0) ** sum(u[t - i] < 0 for i in range(delay + 1)),
            "legendre": (3 * (2 * v[t - delay] - 1) ** 2 - 1) / 2,
            "narma2": narma[t - delay + 2],
        }
        for name, value in expected.items():
            assert target_series(u, cast(Any, name), delay, 2, 40)[t] == pytest.approx(value, abs=1e-12)
    for name in ("recall", "product", "parity", "legendre", "narma2"):
        assert np.isnan(target_series(u, cast(Any, name), delay, 2, 40)[:delay]).all()
