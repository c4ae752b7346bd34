"""Equalisation of a nonlinear radio channel (Jaeger & Haas 2004)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.channel_equalisation.report import figures, tables
from reservoir_hw.tasks.classification import error_metrics
from reservoir_hw.tasks.series import nmse, one_sequence
from reservoir_hw.tasks.task import Evaluation, OutputScale, Report, Task, TaskConfig, checked_outputs

LEVELS = np.array([-3.0, -1.0, 1.0, 3.0])
"""The four symbols, equally likely."""

TAPS = np.array([0.08, -0.12, 1.0, 0.18, -0.1, 0.091, -0.05, 0.04, 0.03, 0.01])
"""What q(n) takes of d(n + 2), d(n + 1), ... d(n - 7)."""

AHEAD = 2
"""Steps by which the newest symbol in q(n) is ahead of n."""

# u = q + 0.036 q² - 0.011 q³
_POLYNOMIAL = {1: 1.0, 2: 0.036, 3: -0.011}

_THRESHOLDS = (LEVELS[:-1] + LEVELS[1:]) / 2


def channel(symbols: np.ndarray) -> np.ndarray:
    """What the channel makes of `symbols` (time + 9,), without noise: (time,).

    q(n) = 0.08 d(n+2) - 0.12 d(n+1) + d(n) + 0.18 d(n-1) - 0.1 d(n-2) + 0.091 d(n-3) - 0.05 d(n-4)
    + 0.04 d(n-5) + 0.03 d(n-6) + 0.01 d(n-7), and u(n) = q(n) + 0.036 q(n)² - 0.011 q(n)³ (Jaeger & Haas 2004).

    `symbols` begin with d(-7), so that element n of the result is u(n).
    """
    q = np.convolve(symbols, TAPS, mode="valid")
    return sum((factor * q**power for power, factor in _POLYNOMIAL.items()), np.zeros_like(q))


def signal_variance() -> float:
    """The variance of u(n) without noise, exactly: q is a sum of independent symbols, so its moments add up."""
    moments = np.zeros(7)
    moments[0] = 1.0
    for tap in TAPS:
        one = [np.mean((tap * LEVELS) ** power) for power in range(7)]
        moments = np.array(
            [sum(math.comb(k, j) * moments[j] * one[k - j] for j in range(k + 1)) for k in range(len(moments))]
        )
    terms = _POLYNOMIAL.items()
    mean = sum(factor * moments[power] for power, factor in terms)
    square = sum(a * b * moments[i + j] for i, a in terms for j, b in terms)
    return float(square - mean**2)


class ChannelEqualisationConfig(TaskConfig):
    """Recover the symbols sent through a nonlinear radio channel (Jaeger & Haas 2004)."""

    kind: Literal["channel_equalisation"]
    snr_db: Annotated[float, Field(ge=-100, le=300)] = Field(default=32.0, description="signal-to-noise ratio")
    dataset: NonNegativeInt = Field(default=0, description="number of the repetition")
    seed: NonNegativeInt = 0
    target_delay: NonNegativeInt = Field(
        default=2, description="steps by which the wanted symbol d(n - delay) lies behind the input u(n)"
    )
    train_steps: PositiveInt = 3000
    test_steps: Annotated[int, Field(ge=100)] = 100_000

    def build(self) -> ChannelEqualisation:
        """A `ChannelEqualisation` with these settings."""
        return ChannelEqualisation(self)


def decided(outputs: np.ndarray) -> np.ndarray:
    """The place in `LEVELS` of the symbol next to each output; the upper one where two are as near."""
    return np.digitize(outputs, _THRESHOLDS)


class ChannelEqualisation(Task):
    """Say from a received radio signal which of four symbols was sent (`channel` has the equations).

    Inputs are u(n) with normal noise, (1, time, 1); `snr_db` is the variance of u without noise over that of the
    noise. Row n of the targets is the symbol d(n - target_delay). The channel's equation runs two steps ahead: u(n)
    already holds a little of d(n + 2), and most of d(n) arrives with u(n). With a `target_delay` of 2, as is usual, a
    symbol is asked for after its echoes up to u(n) have come in; the newest symbol that then has reached the
    receiver is four steps younger, and nothing later is needed to know the target. Every model has to answer for the
    same symbol from the same inputs.

    The inputs are u(n) as it is, between about -4 and 5. Jaeger and Haas add 30 to it before it enters their
    network; nothing is added here, since that belongs to the reservoir: what gives a network its bias, or a loop its
    phase.

    Train and test are consecutive pieces of one transmission. `dataset` numbers repetitions.

    `evaluate` takes the symbol next to each output and gives

    - `symbol_error_rate`, and `symbol_error_rate/low` and `/high`, the ends of its 95 % interval (Wilson 1927). It
      knows of the chance in the test alone, and takes errors as independent: it says nothing of how another mask or
      another training sequence would have done;
    - `nmse`, the mean squared error over the variance of the symbols.

    Takes a configuration, or the fields of `ChannelEqualisationConfig` as keywords. Raises `ConfigurationError` for
    settings out of range.
    """

    score = "symbol_error_rate"
    smaller = ("nmse",)
    report = Report(tables, figures)

    def __init__(self, config: ChannelEqualisationConfig | None = None, /, **settings: Any) -> None:
        config = ChannelEqualisationConfig.of(config, settings)
        self.snr_db, train_steps = config.snr_db, config.train_steps
        steps = train_steps + config.test_steps
        before = max(config.target_delay, len(TAPS) - 1 - AHEAD)
        random = generator(config.seed, f"channel_equalisation/{config.dataset}/symbols")
        sent = random.integers(len(LEVELS), size=before + steps + AHEAD, dtype=np.uint8)
        received = channel(LEVELS[sent[before - (len(TAPS) - 1 - AHEAD) :]])
        noise = generator(config.seed, f"channel_equalisation/{config.dataset}/noise").standard_normal(steps)
        deviation = math.sqrt(signal_variance() * 10 ** (-config.snr_db / 10))
        self.input_range = (-2.8 - 6 * deviation, 4.6 + 6 * deviation)
        inputs = received + noise * deviation
        wanted = sent[before - config.target_delay :][:steps]
        self.train = one_sequence(inputs[:train_steps], LEVELS[wanted[:train_steps]])
        self.test = one_sequence(inputs[train_steps:], LEVELS[wanted[train_steps:]])

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `errors` () and `symbols` (), the counts behind the error rate, and `snr_db` ().

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)
        answers, sent = (decided(symbols[0, :, 0]) for symbols in (outputs, self.test.targets))
        errors = int(np.count_nonzero(answers != sent))
        rates = error_metrics("symbol_error_rate", errors, len(sent))
        return Evaluation(
            {**rates, "nmse": nmse(outputs, self.test.targets)},
            {
                "errors": np.array(errors),
                "symbols": np.array(len(sent)),
                "snr_db": np.array(self.snr_db),
            },
        )
