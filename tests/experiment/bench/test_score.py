from __future__ import annotations

import math

import pytest

from reservoir_hw.experiment.bench.score import ModelScore, TaskScore
from reservoir_hw.experiment.bench.standard import StandardTask

ERROR = StandardTask(title="", metric="e", task={}, baselines={})
TIME = StandardTask(title="", metric="t", larger_is_better=True, task={}, baselines={})


def model(metric: str, *values: float, **more: float) -> ModelScore:
    return ModelScore(
        "", 1.0, 5, 10, [{metric: value, **{f"{metric}/{k}": v for k, v in more.items()}} for value in values]
    )


def test_intervals() -> None:
    # t(0.975, 2) = 4.303, standard deviation 1, three values.
    low, high = model("e", 4.0, 5.0, 6.0).interval(ERROR) or (0, 0)
    assert (low, high) == (pytest.approx(5 - 4.303 / math.sqrt(3), abs=1e-3), pytest.approx(7.484, abs=1e-3))
    assert model("e", 0.1, low=0.05, high=0.2).interval(ERROR) == (0.05, 0.2)
    assert model("t", 7.0, q1=6.0, q3=8.0).interval(TIME) == (6.0, 8.0)
    assert model("e", 0.1).interval(ERROR) is None
    assert model("e", 0.1, low=0.05, high=0.2).text(ERROR) == "0.1\n(0.05 to 0.2)"


def test_a_model_whose_forecasts_all_diverged_loses() -> None:
    lost = model("other", 1.0)
    assert lost.text(ERROR) == "diverged"
    assert lost.mean(TIME) == 0
    assert TaskScore(ERROR, {"device": lost, "register": model("e", 0.9)}).verdict == "register"


@pytest.mark.parametrize(
    ("standard", "device", "baseline", "verdict"),
    [
        (ERROR, model("e", 0.1, 0.2, 0.4), model("e", 0.2, 0.4, 0.8), "device, by a factor of 2.00 (2.00 to 2.00)"),
        # exp(ln 2 ± 4.303 · 0.2 / √3)
        (
            ERROR,
            model("e", 2.0, 2 * math.exp(0.2), 2 * math.exp(-0.2)),
            model("e", 1.0, 1.0, 1.0),
            "register, by a factor of 2.00 (1.22 to 3.29)",
        ),
        (ERROR, model("e", 0.1, 0.3, 0.2), model("e", 0.2, 0.25, 0.4), "no difference beyond the intervals"),
        (ERROR, model("e", 0.0, 0.0), model("e", 0.2, 0.21), "device"),
        (ERROR, model("e", 0.0, 0.0), model("e", 0.0, 0.2), "no difference beyond the intervals"),
        (TIME, model("t", 3.0, 3.0), model("t", 9.0, 9.0), "register, by a factor of 3.00 (3.00 to 3.00)"),
        (ERROR, model("e", 0.1), model("e", 0.3), "device, by a factor of 3.00 (one repetition)"),
        (ERROR, model("e", 0.1), model("e", 300.0), "device, by a factor of more than 1000 (one repetition)"),
        (ERROR, model("e", 0.0), model("e", 0.0), "device and register alike"),
        (
            TIME,
            model("t", 9.0, q1=8.5, q3=9.5),
            model("t", 3.0, q1=2, q3=4),
            "device, by a factor of 3.00 (one repetition)",
        ),
        (TIME, model("t", 1.0, q1=1, q3=3), model("t", 3.0, q1=2, q3=4), "no difference beyond the intervals"),
    ],
)
def test_who_wins(standard: StandardTask, device: ModelScore, baseline: ModelScore, verdict: str) -> None:
    assert TaskScore(standard, {"device": device, "register": baseline}).verdict == verdict
