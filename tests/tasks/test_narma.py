from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from reservoir_hw.tasks.narma import Narma, narma_series
from reservoir_hw.tasks.task import Row


def equation(u: np.ndarray, order: int) -> np.ndarray:
    """The equations of the papers with their own indices: y(1) ... y(T), everything before the start being 0."""
    y = dict.fromkeys(range(-order, 1), 0.0)
    for t in range(len(u)):
        past = u[t - order + 1] if t - order + 1 >= 0 else 0.0
        drive = 0.3 * y[t] + 0.05 * y[t] * sum(y[t - i] for i in range(order)) + 1.5 * past * u[t]
        y[t + 1] = np.tanh(drive + 0.01) if order > 10 else drive + 0.1
    return np.array([y[t + 1] for t in range(len(u))])


@pytest.mark.parametrize("order", [3, 10, 11, 20])
def test_the_equations(order: int) -> None:
    u = np.random.default_rng(order).uniform(0, 0.5, 300)
    np.testing.assert_allclose(narma_series(u, order), equation(u, order), rtol=1e-12)


def test_splits_are_consecutive_pieces_of_one_sequence() -> None:
    one = Narma(washout_steps=0, train_steps=300, test_steps=200)
    assert (one.train.inputs.shape, one.test.targets.shape) == ((1, 300, 1), (1, 200, 1))
    u = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    y = np.concatenate([one.train.targets, one.test.targets], axis=1)[0, :, 0]
    np.testing.assert_array_equal(y, narma_series(u).astype(np.float32))
    shifted = Narma(washout_steps=40, train_steps=260, test_steps=200)
    np.testing.assert_array_equal(shifted.train.inputs, one.train.inputs[:, 40:])
    np.testing.assert_array_equal(shifted.test.targets, one.test.targets)


def test_a_sequence_that_diverges_is_drawn_again(caplog: pytest.LogCaptureFixture) -> None:
    assert np.isinf(narma_series(np.full(1000, 0.5))[-1])
    with caplog.at_level(logging.WARNING):
        one = Narma(dataset=3)
    assert one.redrawn == 1
    assert "data set 3 of seed 0 diverged after 1246 steps and is drawn again" in caplog.text
    assert np.isfinite(one.train.targets).all()
    assert one.test.targets.max() < 2
    (table,) = one.tables([row_of(one, one.test.targets)])
    assert "drawn again" in table.note


def test_metrics() -> None:
    one = Narma()
    targets = one.test.targets.astype(float)
    constant = one.evaluate(np.full_like(targets, targets.mean())).metrics
    assert constant["nmse"] == pytest.approx(1)
    off = one.evaluate(targets + 0.1).metrics
    assert off["nrmse"] == pytest.approx(0.1 / targets.std())
    assert off["nmse"] == pytest.approx(off["nrmse"] ** 2)


def row_of(task: Narma, outputs: np.ndarray, point: dict[str, Any] | None = None) -> Row:
    return Row("model", point or {}, task.evaluate(outputs))


def test_published_values_stand_beside_order_10_only() -> None:
    tenth, fifth = Narma(), Narma(order=5)
    rows = [row_of(tenth, tenth.test.targets + 0.1 * (1 + number), {"task.dataset": number}) for number in (0, 1)]
    (table,) = tenth.tables(rows)
    assert [cells[2] for cells in table.rows] == ["2", "", ""]
    assert "±" in table.rows[0][3]
    assert table.rows[2][0].endswith("(Paquot et al. 2012)")
    assert table.rows[2][4] == "0.168 ± 0.015"
    assert len(fifth.tables([row_of(fifth, fifth.test.targets)])[0].rows) == 1
    mixed = [row_of(fifth, fifth.test.targets, {"task.order": 5}), row_of(tenth, tenth.test.targets)]
    assert [cells[1] for cells in tenth.tables(mixed)[0].rows] == ["5", "10", "10", "10"]
