from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.experiment.bench.score import interval, resampled
from reservoir_hw.tasks.prediction.task import series_evaluation
from reservoir_hw.tasks.sine_square import SineSquare
from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task


class Series(Task):
    """Says its error, and nothing else."""

    def __init__(self, targets: np.ndarray) -> None:
        self.train = self.test = Split(column := targets.reshape(1, -1, 1).astype(np.float32), column)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        return series_evaluation(outputs, self.test)


def autoregressive(rng: np.random.Generator, steps: int, memory: float) -> np.ndarray:
    noise, found = rng.normal(size=steps), np.zeros(steps)
    for t in range(1, steps):
        found[t] = memory * found[t - 1] + noise[t]
    return found


@pytest.mark.slow
def test_the_interval_of_a_ratio_holds_it_as_often_as_it_says() -> None:
    """Errors of two models that are equally good, correlated in time: 1 must lie within in some 95 % of tests."""
    rng, held, tests = np.random.default_rng(5), 0, 120
    for _ in range(tests):
        targets = rng.normal(size=900)
        task = Series(targets)
        errors = [autoregressive(rng, 900, 0.7) * 0.1 for _ in range(2)]
        outputs = [(targets + error)[None, :, None] for error in errors]
        first, second = resampled(task, outputs, "nmse", np.inf)
        low, high = interval(np.log(first / second))
        held += low <= 0 <= high
    assert 0.87 <= held / tests <= 1


def test_models_meet_the_same_tests() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(size=400)
    error = rng.normal(size=400)
    outputs = [(targets + size * error)[None, :, None] for size in (0.1, 0.2)]
    first, second = resampled(Series(targets), outputs, "nrmse", np.inf)
    np.testing.assert_allclose(second / first, 2, rtol=1e-5)
    assert first.std() > 0
    assert (resampled(Series(targets), outputs, "missing", 7.0) == 7.0).all()


def test_sequences_are_drawn_whole_and_pieces_too() -> None:
    class Sums(Task):
        """The sum of the right rows; a row whose steps were torn apart would not be alike."""

        train = test = Split(np.zeros((4, 3, 1)), np.repeat(np.arange(4.0)[:, None, None], 3, axis=1))

        def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
            np.testing.assert_array_equal(outputs, self.test.targets)
            assert (outputs == outputs[:, :1]).all()
            return Evaluation({"sum": float(outputs[:, 0].sum())})

    (sums,) = resampled(Sums(), [Sums.test.targets], "sum", 0.0)
    assert set(sums) <= set(range(13))
    assert sums.mean() == pytest.approx(6, abs=0.5)
    waves = SineSquare(train_periods=10, test_periods=30)
    (rates,) = resampled(waves, [waves.test.targets], "error_rate", 1.0)
    assert (rates == 0).all()
    # Every second period is wrong: half of the periods that are drawn, or nearly.
    wrong = waves.test.targets.copy()
    for period in range(0, 30, 2):
        part = slice(period * waves.period_steps, (period + 1) * waves.period_steps)
        wrong[:, part] = 1 - wrong[:, part]
    (rates,) = resampled(waves, [wrong], "error_rate/period", 1.0)
    assert set(np.round(rates * 30, 6) % 1) == {0.0}
