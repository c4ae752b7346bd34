"""Equalisation of a nonlinear radio channel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from reservoir_hw.core.figure_style import colours, one_panel
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.prediction.task import nmse
from reservoir_hw.tasks.report import about_spread, counted, mean_and_spread, wilson_interval
from reservoir_hw.tasks.task import Evaluation, OutputScale, RepeatedConfig, Row, Table, Task, checked_outputs, in_two

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---- Symbol error rates with their intervals, as tables and figures.


class _Pooled(NamedTuple):
    """The runs of one model at one signal-to-noise ratio, as if they were one long test; ends of the 95 % interval."""

    runs: list[Row]
    errors: int
    symbols: int
    rate: float
    low: float
    high: float


Models: TypeAlias = dict[str, dict[float, _Pooled]]


def _over_noise(axes: Axes, reservoirs: Models, baselines: Models) -> list[Any]:
    """A curve for each model, in the legend from the highest to the lowest where there is least noise."""
    models = {**reservoirs, **{f"baseline {label}": points for label, points in baselines.items()}}
    styles: list[dict[str, Any]] = [
        *({"color": colour, "linestyle": "-", "marker": "o"} for colour in colours(len(reservoirs))),
        *({"color": str(g), "linestyle": "--", "marker": "s"} for g in np.linspace(0.35, 0.65, len(baselines))),
    ]
    looks = dict(zip(models, styles, strict=True))
    handles = []
    for name in sorted(models, key=lambda name: models[name][max(models[name])].high, reverse=True):
        points = dict(sorted(models[name].items()))
        handles.append(_curve(axes, [*points], [*points.values()], name, **looks[name]))
    return handles


def _over_models(axes: Axes, reservoirs: Models, baselines: Models, noises: Sequence[float], line: str) -> list[Any]:
    """The models side by side, a curve for each noise; baselines as levels."""
    handles = []
    for snr, colour in zip(noises, colours(len(noises)), strict=True):
        at = f", {snr:g} dB" if len(noises) > 1 else ""
        here = [(place, points[snr]) for place, points in enumerate(reservoirs.values()) if snr in points]
        if here:
            places, pooled = zip(*here, strict=True)
            handles.append(_curve(axes, places, pooled, f"reservoir{at}", color=colour, linestyle=line, marker="o"))
        for label, style in zip(baselines, itertools.cycle(["--", ":", "-."])):
            if snr in baselines[label]:
                level = baselines[label][snr]
                look: dict[str, Any] = {"color": colour if len(noises) > 1 else "0.5", "linestyle": style}
                handles.append(axes.axhline(level.rate or level.high, label=f"baseline {label}{at}", **look))
    axes.set_xlim(-0.4, len(reservoirs) - 0.6)
    return handles


def _curve(axes: Axes, places: Sequence[float], points: Sequence[_Pooled], label: str, **look: Any) -> Any:
    x, rates = np.array(places), np.array([pooled.rate for pooled in points])
    low, high = np.array([(pooled.low, pooled.high) for pooled in points]).T
    seen = rates > 0
    bars = (rates[seen] - low[seen], high[seen] - rates[seen])
    curve = axes.errorbar(x[seen], rates[seen], bars, markersize=4, capsize=3, label=label, **look)
    # A rate of 0 has no place on a logarithmic axis; what is known is that it lies below this.
    axes.plot(x[~seen], high[~seen], "v", color=look["color"], markerfacecolor="white")
    return curve


def _models(rows: Sequence[Row]) -> Models:
    """Runs by label and signal-to-noise ratio."""
    found: dict[str, dict[float, list[Row]]] = {}
    for row in rows:
        snr = float(row.point.get("task.snr_db", row.evaluation.arrays["snr_db"]))
        found.setdefault(row.label, {}).setdefault(snr, []).append(row)
    return {label: {snr: _pooled(runs) for snr, runs in points.items()} for label, points in found.items()}


def _pooled(runs: list[Row]) -> _Pooled:
    errors, symbols = (sum(int(run.evaluation.arrays[name]) for run in runs) for name in ("errors", "trials"))
    return _Pooled(runs, errors, symbols, errors / symbols, *wilson_interval(errors, symbols))


def _varied(rows: Sequence[Row]) -> list[str]:
    """What makes different models of the rows, by the last two parts of its key."""
    keys = dict.fromkeys(key for row in rows for key in row.point if not key.startswith("task."))
    several = [key for key in keys if len({repr(row.point[key]) for row in rows if key in row.point}) > 1]
    return [".".join(key.split(".")[-2:]) for key in several if not key.endswith("seed")]


def _values(rows: Sequence[Row], varied: Sequence[str], reservoirs: Models) -> list[str]:
    """What to call the models on an axis: the value of the one thing that varies, or their labels."""
    if len(varied) != 1:
        return list(reservoirs)
    names = {
        row.label: "none" if value is None else str(value)
        for row in rows
        for key, value in row.point.items()
        if not key.startswith("task.") and key.endswith(varied[0]) and not isinstance(value, Mapping)
    }
    return [names.get(label, label) for label in reservoirs]


# ---- Equalisation of a nonlinear radio channel (Jaeger & Haas 2004).


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


class ChannelEqualisationConfig(RepeatedConfig):
    """Recover the symbols sent through a nonlinear radio channel (Jaeger & Haas 2004)."""

    kind: Literal["channel_equalisation"]
    snr_db: Annotated[float, Field(ge=-100, le=300)] = Field(default=32.0, description="signal-to-noise ratio")
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

    def __init__(self, config: ChannelEqualisationConfig | None = None, /, **settings: Any) -> None:
        config = ChannelEqualisationConfig.of(config, settings)
        self.snr_db, steps = config.snr_db, config.train_steps + config.test_steps
        before = max(config.target_delay, len(TAPS) - 1 - AHEAD)
        random = generator(config.seed, f"channel_equalisation/{config.dataset}/symbols")
        sent = random.integers(len(LEVELS), size=before + steps + AHEAD, dtype=np.uint8)
        received = channel(LEVELS[sent[before - (len(TAPS) - 1 - AHEAD) :]])
        noise = generator(config.seed, f"channel_equalisation/{config.dataset}/noise").standard_normal(steps)
        deviation = math.sqrt(signal_variance() * 10 ** (-config.snr_db / 10))
        self.input_range = (-2.8 - 6 * deviation, 4.6 + 6 * deviation)
        wanted = sent[before - config.target_delay :][:steps]
        self.train, self.test = in_two(received + noise * deviation, LEVELS[wanted], config.train_steps)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, 1) for the test split; the class describes the metrics.

        `arrays` are `errors` () and `trials` (), the counts behind the error rate, and `snr_db` ().

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs = checked_outputs(outputs, self.test)
        answers, sent = (decided(symbols[0, :, 0]) for symbols in (outputs, self.test.targets))
        found = counted(answers != sent, "symbol_error_rate")
        found.metrics["nmse"] = nmse(outputs, self.test.targets)
        found.arrays["snr_db"] = np.array(self.snr_db)
        return found

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table, with a line for each model and signal-to-noise ratio."""
        body = [
            [
                label,
                f"{snr:g}",
                str(len(pooled.runs)),
                f"{pooled.symbols:,}",
                f"{pooled.errors:,}",
                f"{pooled.rate:.2e}",
                f"{pooled.low:.2e} to {pooled.high:.2e}",
                mean_and_spread(pooled.runs, "nmse", ".4f"),
            ]
            for label, points in _models(rows).items()
            for snr, pooled in points.items()
        ]
        header = ["model", "SNR (dB)", "runs", "symbols", "errors", "symbol error rate", "95 % interval", "NMSE"]
        note = (
            "Intervals: Wilson, of the chance in the test alone, with the symbols of all runs taken as independent. "
            f"NMSE: {about_spread(rows)}"
        )
        return [Table("Channel equalisation", header, body, note)]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Figures by file stem, over the same rows as `tables`.

        The rates stand over the noise, one curve for each model; where one other thing takes more values, they stand
        over that, one curve for each noise. Baselines are dashed.
        """
        models = _models(rows)
        without_device = {row.label for row in rows if row.details.get("baseline")}
        baselines = {label: points for label, points in models.items() if label in without_device}
        reservoirs = {label: points for label, points in models.items() if label not in baselines}
        noises = sorted({snr for points in models.values() for snr in points})
        varied = _varied(rows)
        figure, axes = one_panel(8.0, 4.8)
        axes.set(yscale="log", ylabel="symbol error rate")
        if reservoirs and (len(noises) == 1 or (len(varied) == 1 and len(reservoirs) > len(noises))):
            subject, line = (varied[0], "-") if len(varied) == 1 else ("model", "")
            handles = _over_models(axes, reservoirs, baselines, noises, line)
            names = _values(rows, varied, reservoirs)
            slanted = {"rotation": 25, "ha": "right"} if max(map(len, names)) > 8 else {}
            axes.set_xticks(range(len(reservoirs)), names, **slanted)
            axes.set_xlabel(subject)
            at = f" at {noises[0]:g} dB" if len(noises) == 1 else ""
            title = f"Symbol error rate by {subject}{at}"
        else:
            handles = _over_noise(axes, reservoirs, baselines)
            axes.set(xticks=noises, xlabel="signal-to-noise ratio (dB)")
            title = "Symbol error rate by noise" + (f", for each {' and '.join(varied)}" if varied else "")
        axes.set_title(f"{title}\n(bars: 95 % intervals)", fontsize=11)
        axes.grid(axis="y", color="0.9")
        axes.set_axisbelow(True)
        if any(pooled.errors == 0 for points in models.values() for pooled in points.values()):
            label = "no error seen:\nupper end of the interval"
            handles += axes.plot([], [], "v", color="0.4", markerfacecolor="white", label=label)
        figure.legend(handles=handles, loc="outside right center", frameon=False)
        return {"symbol_error_rate": figure}
