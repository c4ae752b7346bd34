from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw import Experiment
from reservoir_hw.core.errors import InputRangeError, ShapeError
from reservoir_hw.tasks.narma.task import Narma, narma_series
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


def test_by_hand() -> None:
    u = np.zeros(12)
    u[0] = u[9] = 0.4
    y = narma_series(u)
    assert y[0] == pytest.approx(0.1)
    assert y[1] == pytest.approx(0.3 * 0.1 + 0.05 * 0.1 * 0.1 + 0.1)
    quiet = narma_series(np.zeros(12))
    np.testing.assert_array_equal(y[:9], quiet[:9])
    # u(0) and u(9) meet in y(10), which is element 9.
    assert y[9] == pytest.approx(quiet[9] + 1.5 * 0.4 * 0.4)


@settings(max_examples=20, deadline=None)
@given(step=st.integers(0, 199), order=st.sampled_from([5, 10, 20]))
def test_targets_do_not_know_the_future(step: int, order: int) -> None:
    u = np.random.default_rng(1).uniform(0, 0.5, 200)
    later = u.copy()
    later[step + 1 :] = np.random.default_rng(2).uniform(0, 0.5, 199 - step)
    np.testing.assert_array_equal(narma_series(u, order)[: step + 1], narma_series(later, order)[: step + 1])
    here = u.copy()
    here[step] += 0.1
    if step >= order - 1:
        assert narma_series(here, order)[step] != narma_series(u, order)[step]


def test_splits_are_consecutive_pieces_of_one_sequence() -> None:
    one = Narma(washout_steps=0, train_steps=300, test_steps=200)
    for split, steps in ((one.train, 300), (one.test, 200)):
        assert split.inputs.shape == split.targets.shape == (1, steps, 1)
        assert split.inputs.dtype == split.targets.dtype == np.float32
        assert split.symbols is None
    u = np.concatenate([one.train.inputs, one.test.inputs], axis=1)[0, :, 0]
    y = np.concatenate([one.train.targets, one.test.targets], axis=1)[0, :, 0]
    assert u.min() >= 0
    assert u.max() <= 0.5
    np.testing.assert_array_equal(y, narma_series(u).astype(np.float32))
    shifted = Narma(washout_steps=40, train_steps=260, test_steps=200)
    np.testing.assert_array_equal(shifted.train.inputs, one.train.inputs[:, 40:])
    np.testing.assert_array_equal(shifted.test.targets, one.test.targets)


def test_seeds_and_data_sets() -> None:
    first = Narma(seed=3, dataset=1).train.inputs
    np.testing.assert_array_equal(first, Narma(seed=3, dataset=1).train.inputs)
    for other in (Narma(seed=4, dataset=1), Narma(seed=3, dataset=2), Narma(seed=3, dataset=1, order=9)):
        assert not np.array_equal(first, other.train.inputs)


def test_the_data_are_the_same_on_every_machine() -> None:
    one = Narma()
    np.testing.assert_allclose(one.train.inputs[0, :3, 0], [0.26073131, 0.40380129, 0.33705720], rtol=1e-6)
    np.testing.assert_allclose(one.train.targets[0, :3, 0], [0.30450180, 0.38891792, 0.41369671], rtol=1e-5)


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
    assert one.evaluate(targets).metrics == {"nmse": 0, "nrmse": 0}
    constant = one.evaluate(np.full_like(targets, targets.mean())).metrics
    assert constant["nmse"] == pytest.approx(1)
    off = one.evaluate(targets + 0.1).metrics
    assert off["nrmse"] == pytest.approx(0.1 / targets.std())
    assert off["nmse"] == pytest.approx(off["nrmse"] ** 2)


def test_bad_outputs() -> None:
    one = Narma()
    with pytest.raises(ShapeError, match=r"outputs have shape \(1, 7, 1\)"):
        one.evaluate(np.zeros((1, 7, 1)))
    broken = np.zeros_like(one.test.targets)
    broken[0, 5:7] = np.nan
    with pytest.raises(InputRangeError, match="2 of 2000 outputs are not finite"):
        one.evaluate(broken)


def row_of(task: Narma, outputs: np.ndarray, point: dict[str, Any] | None = None) -> Row:
    return Row("model", point or {}, task.evaluate(outputs))


def test_published_values_stand_beside_order_10_only() -> None:
    tenth, fifth = Narma(), Narma(order=5)
    rows = [
        row_of(tenth, tenth.test.targets + 0.1),
        row_of(tenth, tenth.test.targets + 0.2, {"task.dataset": 1}),
    ]
    (table,) = tenth.tables(rows)
    assert [cells[2] for cells in table.rows] == ["2", "", ""]
    assert "±" in table.rows[0][3]
    assert table.rows[2][0].endswith("(Paquot et al. 2012)")
    assert table.rows[2][4] == "0.168 ± 0.015"
    assert len(fifth.tables([row_of(fifth, fifth.test.targets)])[0].rows) == 1
    mixed = [row_of(fifth, fifth.test.targets, {"task.order": 5}), row_of(tenth, tenth.test.targets)]
    assert [cells[1] for cells in tenth.tables(mixed)[0].rows] == ["5", "10", "10", "10"]
    assert set(tenth.figures(mixed)) == {"series", "nmse"}


def experiment(**changes: Any) -> Experiment:
    document: dict[str, Any] = {
        "task": {"kind": "narma"},
        "reservoir": {"kind": "esn", "nodes": 100, "spectral_radius": 0.8, "input_scaling": 1.0},
        "readout": {"kind": "ridge", "washout": 100},
        "baselines": [{"kind": "fir", "taps": 20}],
    }
    for key, value in changes.items():
        section, _, name = key.partition(".")
        document.setdefault(section, {})[name] = value
    return Experiment(document)


def test_in_an_experiment(tmp_path: Any) -> None:
    result = experiment(**{"run.folder": str(tmp_path), "vary.task.dataset": [0, 1]}).run()
    assert [row.label for row in result.rows] == ["fir(20)", "ESN(100)", "fir(20)", "ESN(100)"]
    assert all(0.1 < row.evaluation.metrics["nrmse"] < 0.45 for row in result.rows)
    assert {path.stem for path in (result.folder / "figures").iterdir()} == {"series", "nmse"}
    assert "published: linear shift register" in (result.folder / "report.html").read_text()
