"""What a correct simulation of delay loops must show, through experiment files as a user writes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.tasks.task import Row

EXAMPLES = Path(__file__).parents[4] / "examples" / "delay_loop"


def rows_of(file: str, folder: Path, **settings: Any) -> list[Row]:
    changes = {"run.folder": str(folder), **settings}
    return Experiment.from_file(EXAMPLES / file, set=changes).run().rows


def values(rows: Sequence[Row], metric: str, **point: Any) -> np.ndarray:
    """The metric of the reservoirs at these points, baselines left out."""
    chosen = [row for row in rows if not row.details.get("baseline") and point.items() <= row.point.items()]
    return np.array([row.evaluation.metrics[metric] for row in chosen])


def register(rows: Sequence[Row], metric: str) -> np.ndarray:
    """The metric of the linear shift register."""
    return np.array([row.evaluation.metrics[metric] for row in rows if row.label.startswith("fir")])


@pytest.mark.slow
def test_narma10_shift_register_and_sine_loop(tmp_path: Path) -> None:
    """NRMSE 0.40 for the register, NMSE 0.168 ± 0.015 for 50 nodes (Paquot et al. 2012)."""
    masks, sets = [0, 1, 2], list(range(10))
    rows = rows_of("narma.yaml", tmp_path, **{"reservoir.vary.seed": masks, "vary.task.dataset": sets})
    linear = register(rows, "nrmse")
    assert len(linear) == 10
    assert linear.mean() == pytest.approx(0.40, abs=0.02)
    for mask in masks:
        of_mask = values(rows, "nmse", **{"reservoir.seed": mask})
        assert len(of_mask) == 10
        assert 0.14 < of_mask.mean() < 0.20


@pytest.mark.slow
def test_narma10_more_nodes_beat_the_shift_register(tmp_path: Path) -> None:
    larger = {"reservoir.nodes": 300, "task.train_steps": 4000}
    rows = rows_of("narma.yaml", tmp_path, **{"reservoir.vary.seed": [0, 1], "vary.task.dataset": [0, 1]}, **larger)
    assert values(rows, "nmse").max() < 0.5 * register(rows, "nmse").min()


@pytest.mark.slow
def test_equaliser_beats_a_filter(tmp_path: Path) -> None:
    shorter = {"vary.task.snr_db": [24], "task.test_steps": 200_000}
    rows = rows_of("equalisation.yaml", tmp_path, **{"reservoir.vary.seed": [0, 1, 2]}, **shorter)
    assert all(row.evaluation.arrays["trials"] == 200_000 for row in rows)
    (linear,) = register(rows, "symbol_error_rate/low")
    loops = values(rows, "symbol_error_rate/high")
    assert len(loops) == 3
    assert (loops < 1e-3).all()
    assert (loops < linear).all()


BITS = "reservoir.nonidealities.readout.bits"


@pytest.mark.slow
def test_bits_of_the_adc_in_equalisation(tmp_path: Path) -> None:
    rows = rows_of("adc.yaml", tmp_path, **{"vary.task.snr_db": [32], "task.test_steps": 100_000})
    rows = [row for row in rows if not row.details.get("baseline")]
    assert [row.point[BITS] for row in rows] == [None, 12, 10, 8]
    metrics = [row.evaluation.metrics for row in rows]
    for better, worse in pairwise(metrics):
        assert better["symbol_error_rate/high"] < worse["symbol_error_rate/low"]
        assert better["nmse"] < worse["nmse"]


@pytest.mark.slow
def test_bits_of_the_adc_in_narma10(tmp_path: Path) -> None:
    sets = [0, 1, 2]
    rows = rows_of("adc_narma.yaml", tmp_path, **{"vary.task.dataset": sets})
    for dataset in sets:
        assert (np.diff(values(rows, "nmse", **{"task.dataset": dataset})) > 0).all()
