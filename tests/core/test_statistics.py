"""The line of a scaling law, against numpy's."""

from __future__ import annotations

import itertools

import numpy as np

from reservoir_hw.core.statistics import fit_log10

LOSSES = {773_380: [5.31, 5.29, 5.33], 1_344_388: [5.12, 5.17], 2_038_276: [5.02, 4.99, 5.06]}


def test_the_line_is_that_of_polyfit() -> None:
    fit = fit_log10(LOSSES)
    x = np.log10(np.repeat(list(LOSSES), [3, 2, 3]))
    np.testing.assert_allclose((fit.slope, fit.intercept), np.polyfit(x, np.concatenate(list(LOSSES.values())), 1))
    np.testing.assert_allclose(fit.at([1e6]), fit.slope * 6 + fit.intercept)


def test_the_intervals_are_those_of_all_draws() -> None:
    fit = fit_log10(LOSSES, resamples=100_000)
    draws = itertools.product(*(list(itertools.product(runs, repeat=len(runs))) for runs in LOSSES.values()))
    x = np.log10(np.repeat(list(LOSSES), [3, 2, 3]))
    lines = np.polyfit(x, np.array([np.concatenate(draw) for draw in draws]).T, 1)
    found = fit.slope_interval, fit.intercept_interval
    np.testing.assert_allclose(found, np.quantile(lines, [0.025, 0.975], axis=1).T, rtol=2e-3)
