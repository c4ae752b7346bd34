"""A curve over six values of a knob on the emulated film; its noise, drift and hysteresis are the emulator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import narma
from text_benches import film, levels

from reservoir_hw.emulators.physics.devices import FilmConfig

GATES = [round(0.1 * n, 1) for n in range(1, 7)]
GATE = 2
"""The channel of the gate in the log of the emulator."""


def curve(folder: Path, planted: FilmConfig, draws: int, gates: list[float] = GATES) -> tuple[np.ndarray, Any]:
    """Scores (draws, gates), and the log of the outputs."""
    with film(planted) as (lab, config):
        config["instruments"]["supply"] = {"address": lab.supply, "errors": "SYST:ERR?"}
        config["knobs"] = {
            "gate_v": {
                "to": "supply", "set": "VOLT {value:.3f}", "read": "VOLT?", "value": 0.0, "limits": [0, 1],
                "unit": "V", "ramp_step": 0.1, "ramp_wait_s": 0, "closing": 0,
            }
        }  # fmt: skip
        config["vary"] = {"knobs.gate_v": gates}
        task, readout = {"order": 3, "train_steps": 60, "test_steps": 40}, {"alpha": 1e-6, "washout": 10}
        training, run = {"test_warmup_steps": 10}, {"draws": draws}
        made = narma(folder, task=task, reservoir=config, readout=readout, training=training, run=run)
        result = made.run(lambda *_: None, report=False)
        found = np.full((draws, len(gates)), np.nan)
        for row in result.rows:
            at = row.point.get("run.draw", 0), gates.index(row.point["reservoir.knobs.gate_v"])
            found[at] = row.evaluation.metrics["nrmse"]
        return found, lab.bench.log


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """χ² of the difference of two curves, each (draws, gates), of which a common offset does not count."""
    variance = one.var(0, ddof=1) / len(one) + other.var(0, ddof=1) / len(other)
    difference = one.mean(0) - other.mean(0)
    difference -= np.average(difference, weights=1 / variance)
    return float(np.sum(difference**2 / variance))


@pytest.mark.slow
def test_error_bars_over_draws_are_those_of_the_noise(tmp_path: Path) -> None:
    one, log = curve(tmp_path, FilmConfig(noise_a=2e-7, seed=1), 5)
    # One opening: the gate goes back to its closing value once, at the end.
    gate = levels(log, GATE)
    assert np.abs(np.diff(gate)).max() <= 0.1 + 1e-9
    assert gate[-1] == 0
    other, _ = curve(tmp_path, FilmConfig(noise_a=2e-7, seed=2), 5)
    assert one.std(0, ddof=1).min() > 0
    # Five free points of five draws each: 6 are expected, less than 0.2 or more than 36 in one of a thousand.
    assert 0.2 < distance(one, other) < 36
    drifting, _ = curve(tmp_path, FilmConfig(noise_a=2e-7, seed=3, drift=1e-5), 5)
    assert distance(drifting, one) < 36


@pytest.mark.slow
def test_without_noise_there_are_no_bars_and_hysteresis_bends_nothing(tmp_path: Path) -> None:
    steady, _ = curve(tmp_path, FilmConfig(), 2)
    assert (steady[0] == steady[1]).all()
    upwards, _ = curve(tmp_path, FilmConfig(hysteresis_v=0.03), 2)
    downwards, _ = curve(tmp_path, FilmConfig(hysteresis_v=0.03), 2, GATES[::-1])
    assert (upwards[0] == upwards[1]).all()
    assert np.array_equal(upwards, downwards[:, ::-1])
