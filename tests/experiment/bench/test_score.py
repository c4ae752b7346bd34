from __future__ import annotations

import math

import numpy as np
import pytest

from reservoir_hw.experiment.bench.score import ModelScore, TaskScore
from reservoir_hw.experiment.bench.standard import StandardTask

ERROR = StandardTask(title="", metric="e", task={}, baselines={})
TIME = StandardTask(title="", metric="t", larger_is_better=True, task={}, baselines={})


def model(
    metric: str, *values: float, loss: float = 1.0, drawn: list[float] | None = None, **more: float
) -> ModelScore:
    found = [{metric: value, **{f"{metric}/{k}": v for k, v in more.items()}} for value in values]
    return ModelScore("", 1.0, 15, loss, 10, found, None if drawn is None else np.array(drawn))


def around(value: float, width: float = 0.1) -> list[float]:
    """As many resamples as there are, spread evenly by so much in either direction."""
    return list(value * np.exp(np.linspace(-width, width, 399)))


def test_intervals() -> None:
    # t(0.975, 2) = 4.303, standard deviation 1, three values.
    low, high = model("e", 4.0, 5.0, 6.0).interval(ERROR) or (0, 0)
    assert (low, high) == (pytest.approx(5 - 4.303 / math.sqrt(3), abs=1e-3), pytest.approx(7.484, abs=1e-3))
    assert model("e", 0.1, low=0.05, high=0.2).interval(ERROR) == (0.05, 0.2)
    assert model("e", 0.1, low=0.05, high=0.2).text(ERROR) == "0.1\n(0.05 to 0.2)"
    # Of 399 resamples the 10th from either end; and the value itself always lies within.
    drawn = [float(number) for number in range(1, 400)]
    assert model("t", 200.0, drawn=drawn).interval(TIME) == (10.0, 390.0)
    assert model("t", 3.0, drawn=drawn).interval(TIME) == (3.0, 390.0)
    assert model("t", math.inf, drawn=drawn).interval(TIME) is None


def test_the_rival_is_chosen_on_the_validation_part() -> None:
    """Not on the test, where the other one is better."""
    models = {
        "device": model("e", 1.0, 1.1, 1.2, loss=0.1),
        "register": model("e", 2.0, 2.2, 2.4, loss=0.3),
        "polynomial": model("e", 0.5, 0.5, 0.5, loss=0.4),
    }
    score = TaskScore(ERROR, models)
    assert score.rival == "register"
    assert score.verdict == "device, by a factor of 2.00 (2.00 to 2.00) over register"


def test_a_model_whose_forecasts_all_diverged_loses() -> None:
    lost, other = model("other", 1.0, drawn=[math.inf] * 399), model("e", 0.9, drawn=around(0.9))
    assert lost.text(ERROR) == "diverged"
    assert lost.mean(TIME) == 0
    assert TaskScore(ERROR, {"device": lost, "register": other}).verdict == "register"


NONE = "device and register: no difference beyond the intervals"


@pytest.mark.parametrize(
    ("standard", "device", "baseline", "verdict"),
    [
        (
            ERROR,
            model("e", 0.1, 0.2, 0.4),
            model("e", 0.2, 0.4, 0.8),
            "device, by a factor of 2.00 (2.00 to 2.00) over register",
        ),
        # exp(ln 2 ± 4.303 · 0.2 / √3)
        (
            ERROR,
            model("e", 2.0, 2 * math.exp(0.2), 2 * math.exp(-0.2)),
            model("e", 1.0, 1.0, 1.0),
            "register, by a factor of 2.00 (1.22 to 3.29)",
        ),
        (ERROR, model("e", 0.1, 0.3, 0.2), model("e", 0.2, 0.25, 0.4), NONE),
        # A ratio says nothing: 0.205 ± 12.7 · 0.00707 / √2.
        (ERROR, model("e", 0.0, 0.0), model("e", 0.2, 0.21), "device, by 0.21 (0.14 to 0.27) over register"),
        (ERROR, model("e", 0.0, 0.0), model("e", 0.0, 0.2), NONE),
        (TIME, model("t", 3.0, 3.0), model("t", 9.0, 9.0), "register, by a factor of 3.00 (3.00 to 3.00)"),
        (ERROR, model("e", 0.0), model("e", 0.0), "device and register: the same score"),
        # One of three has diverged, and the others tell the contrary; all of three have.
        (ERROR, model("e", 0.1, 0.1, math.inf), model("e", 0.2, 0.2, 0.2), NONE),
        (ERROR, model("e", math.inf, math.inf), model("e", 0.2, 0.3), "register"),
        # A single test: what was drawn from it decides, in pairs.
        (
            ERROR,
            model("e", 0.1, drawn=around(0.1, 0.5)),
            model("e", 0.3, drawn=around(0.3, 0.5)),
            "device, by a factor of 3.00 (3.00 to 3.00) over register",
        ),
        (ERROR, model("e", 0.1, drawn=around(0.1, 0.5)), model("e", 0.11, drawn=around(0.11, 0.5)[::-1]), NONE),
        (
            ERROR,
            model("e", 0.0, drawn=[0.0] * 399),
            model("e", 0.3, drawn=around(0.3)),
            "device, by 0.3 (0.27 to 0.33) over register",
        ),
        (ERROR, model("e", 0.0, drawn=[0.0] * 399), model("e", 0.01, drawn=[0.0] * 100 + [0.02] * 299), NONE),
        (
            TIME,
            model("t", 9.0, drawn=around(9.0, 0.2)),
            model("t", 3.0, drawn=around(3.0, 0.1)),
            "device, by a factor of 3.00 (2.73 to 3.30) over register",
        ),
    ],
)
def test_who_wins(standard: StandardTask, device: ModelScore, baseline: ModelScore, verdict: str) -> None:
    assert TaskScore(standard, {"device": device, "register": baseline}).verdict == verdict
