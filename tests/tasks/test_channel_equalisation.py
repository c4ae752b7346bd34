from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from reservoir_hw.readout.baselines.fir import FirConfig
from reservoir_hw.tasks.channel_equalisation import LEVELS, ChannelEqualisation, channel, signal_variance
from reservoir_hw.tasks.report import wilson_interval
from reservoir_hw.tasks.task import Row

QUIET = 300.0
"""A signal-to-noise ratio at which nothing is left of the noise in float32."""


def equation(d: dict[int, float], n: int) -> float:
    taps = {2: 0.08, 1: -0.12, 0: 1, -1: 0.18, -2: -0.1, -3: 0.091, -4: -0.05, -5: 0.04, -6: 0.03, -7: 0.01}
    q = sum(tap * d[n + shift] for shift, tap in taps.items())
    return q + 0.036 * q**2 - 0.011 * q**3


def test_the_equations_of_the_channel() -> None:
    symbols = np.random.default_rng(0).choice(LEVELS, 60)
    d = {place - 7: value for place, value in enumerate(symbols)}
    np.testing.assert_allclose(channel(symbols), [equation(d, n) for n in range(51)], rtol=1e-12)


@pytest.mark.parametrize("delay", [0, 2, 5, 20])
def test_alignment_of_inputs_and_targets(delay: int) -> None:
    """u(n) is the channel's answer to the very symbols that the targets name, `delay` rows later."""
    one = ChannelEqualisation(snr_db=QUIET, target_delay=delay, train_steps=150, test_steps=150)
    u = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    sent = np.concatenate([one.train.targets, one.test.targets], axis=1)[0, :, 0].astype(float)
    d = {row - delay: value for row, value in enumerate(sent)}
    for n in range(7, 295 - delay):
        assert u[n] == pytest.approx(equation(d, n), rel=1e-6)


@pytest.mark.parametrize("snr_db", [12.0, 32.0])
def test_signal_to_noise_ratio(snr_db: float) -> None:
    quiet, noisy = (ChannelEqualisation(snr_db=snr, test_steps=200_000).test.inputs for snr in (QUIET, snr_db))
    assert np.var(quiet, dtype=float) == pytest.approx(signal_variance(), rel=0.01)
    noise = noisy - quiet
    assert 10 * math.log10(signal_variance() / np.var(noise, dtype=float)) == pytest.approx(snr_db, abs=0.05)


def test_metrics() -> None:
    one = ChannelEqualisation(test_steps=1000)
    right = one.test.targets
    perfect = one.evaluate(right)
    assert perfect.metrics["symbol_error_rate/low"] == pytest.approx(0, abs=1e-12)
    assert perfect.metrics["symbol_error_rate/high"] == pytest.approx(3.8416 / 1003.8416, rel=1e-4)
    # Beyond the outermost symbols nothing is lost, within 1 of the right one neither.
    assert one.evaluate(right * 1.3).metrics["symbol_error_rate"] == 0
    wrong = right.copy()
    wrong[0, :10] = -wrong[0, :10]
    wrong[0, 10:20] += 0.99
    counted = one.evaluate(wrong)
    assert counted.metrics["symbol_error_rate"] == 0.01
    assert int(counted.arrays["errors"]) == 10
    assert int(counted.arrays["trials"]) == 1000
    assert counted.metrics["nmse"] > 0


@pytest.mark.parametrize(("errors", "trials"), [(0, 50), (3, 1000), (50, 50), (400, 1_000_000), (7, 20)])
def test_interval(errors: int, trials: int) -> None:
    expected = binomtest(errors, trials).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(errors, trials), (expected.low, expected.high), rtol=1e-6, atol=1e-15)


def test_a_filter_cannot_undo_the_nonlinearity() -> None:
    """A filter loses to noise at 16 dB; at 32 dB what is left is the channel's own distortion."""
    rates = []
    for snr_db in (16.0, 24.0, 32.0):
        one = ChannelEqualisation(snr_db=snr_db, test_steps=200_000)
        rates.append(FirConfig(kind="fir", taps=13).evaluate(one).metrics["symbol_error_rate"])
    assert rates[0] > 2 * rates[1] > 2 * rates[2] > 2e-3
    assert FirConfig(kind="fir", taps=40).evaluate(one).metrics["symbol_error_rate"] > 1e-3


def drawn(points: list[tuple[str, dict[str, Any], float]]) -> Any:
    """The axes of the figure for models at points, and the words of its legend."""
    one = ChannelEqualisation(test_steps=1000)
    rows = []
    for label, point, share in points:
        outputs = one.test.targets.copy()
        outputs[0, : int(1000 * share)] *= -1
        rows.append(Row(label, point, one.evaluate(outputs), {"baseline": label.startswith("fir")}))
    figure = one.figures(rows)["symbol_error_rate"]
    (axes,), (legend,) = figure.axes, figure.legends
    return axes, [text.get_text() for text in legend.get_texts()]


def test_over_the_noise_the_legend_has_the_order_of_the_curves() -> None:
    points = [
        (label, {"task.snr_db": snr}, share)
        for label, shares in {"fir(13)": (0.3, 0.2), "best": (0.1, 0.0), "worst": (0.5, 0.4)}.items()
        for snr, share in zip((12, 24), shares, strict=True)
    ]
    axes, legend = drawn(points)
    assert axes.get_xlabel() == "signal-to-noise ratio (dB)"
    assert legend == ["worst", "baseline fir(13)", "best", "no error seen:\nupper end of the interval"]
    styles = [container.lines[0].get_linestyle() for container in axes.containers]
    assert styles == ["-", "--", "-"]
