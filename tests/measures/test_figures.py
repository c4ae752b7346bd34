"""Figures of every measure, also of results at the edge."""

from __future__ import annotations

import io

import numpy as np
import pytest
from measures.known import Map, linear, random

from reservoir_hw.measures import (
    MEASURES,
    AtPoint,
    Live,
    Measured,
    climate,
    consistency,
    coverage,
    echo_state_index,
    grid_points,
    lyapunov_spectrum,
    operating_map,
    signal_to_noise,
)
from reservoir_hw.measures.figures import figures

pytest.importorskip("matplotlib")


def drawn(results: dict[str, Measured]) -> set[str]:
    """Names of the figures; drawing must raise no warning."""
    found = figures(results)
    for figure in found.values():
        figure.savefig(io.BytesIO(), format="png", dpi=40)
    return set(found)


@pytest.mark.slow
def test_every_measure_has_a_figure_with_ticks_at_whole_numbers() -> None:
    with Map(lambda x, u: np.tanh(0.8 * x + u), noise=1e-2) as device:
        live = Live(device, steps=1000, washout=50, repeats=4, max_delay=20)
        found = figures({name: getattr(live, name)() for name in MEASURES})
    assert set(found) == set(MEASURES)
    counted = ("node", "delay", "direction", "segment", "number", "axis", "step of the common drive")
    seen = set()
    for name, figure in found.items():
        figure.savefig(io.BytesIO(), format="png", dpi=40)
        for axes in figure.axes:
            if any(what in axes.get_xlabel() for what in counted) and axes.get_xscale() == "linear":
                assert all(tick == int(tick) for tick in axes.get_xticks()), (name, axes.get_xlabel())
                seen.add(name)
    assert seen == set(MEASURES) - {"echo_state_index"}


@pytest.mark.slow
def test_every_qualification_has_a_figure() -> None:
    rng = random()
    with Map(lambda x, u: np.tanh(0.8 * x + u), noise=1e-2) as device:
        live = Live(device, steps=1000, washout=50, repeats=4, max_delay=20)
        budget = live.noise_budget()
        point = AtPoint(budget, live.consistency())
    points = grid_points([[0.1, 1.0], [-0.5, 0.5], [1.0, 2.0]])[:7]
    results: dict[str, Measured] = {
        "budget": budget,
        "spectrum": lyapunov_spectrum(lambda t, x: 0.9 * np.cos(3 * x), np.ones((2, 3)), steps=400, known=(0.1, 0.0)),
        "climate": climate(rng.standard_normal((5, 100, 2)), rng.standard_normal((5, 100, 2))),
        "map": operating_map(("amplitude", "bias", "hold"), points, [point] * 7, point, [(3, point), (3, point)]),
        "line": operating_map(("amplitude",), points[:2, :1], [point] * 2, point, [(0, point)]),
        "coverage": coverage(rng.uniform(0, 2, (5, 3)), rng.uniform(0, 2, (5, 3)), nodes=2),
    }
    assert drawn(results) == set(results)


@pytest.mark.slow
def test_results_at_the_edge() -> None:
    with linear(np.diag(np.ones(3), -1)) as line:
        live = Live(line, steps=1000, washout=20, max_delay=20)
        names = ("lyapunov_exponent", "signal_to_noise", "consistency", "memory_capacity", "kernel_rank")
        results = {name: getattr(live, name)() for name in names}
    # Nothing is left to be drawn of differences that vanish, and of a noise that is not there.
    assert drawn(results) == set(names[2:])
    rng = random()
    noise = rng.standard_normal((2, 100, 3))
    noise[:, :, 1] = 2.0
    assert len(drawn({"a": consistency(noise), "b": signal_to_noise(noise), "c": echo_state_index(noise)})) == 3
