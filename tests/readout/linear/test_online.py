from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_problem import problem, relative

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.readout import LMSReadout, NotSolved, RidgeReadout, RLSReadout
from reservoir_hw.readout.linear.online import RlsConfig

# ---- against ridge regression and the textbook


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("alpha", [1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("rows", [1, 5, 700])
def test_rls_without_forgetting_equals_ridge(rows: int, alpha: float, bias: bool) -> None:
    states, targets = (array[:rows] for array in problem())
    online = RLSReadout(alpha, standardise=False, bias=bias).fit(states, targets)
    if rows == 1:
        # One row determines the bias alone; that is what ridge regression leaves to it too.
        expected = targets[0] if bias else targets[0] * (states[0] @ states[0]) / (alpha + states[0] @ states[0])
        assert relative(online.predict(states[0]), expected) < 1e-8
        return
    ridge = RidgeReadout(alpha, standardise=False, bias=bias, solver="qr").fit(states, targets)
    assert relative(online.weights_, ridge.weights_) < 1e-8
    assert np.max(np.abs(online.bias_ - ridge.bias_)) < 1e-8 * np.max(np.abs(targets))


def test_standardised_by_the_first_steps_it_equals_ridge_on_what_these_scale() -> None:
    states, targets = problem()
    centre, spread = states[:50].mean(axis=0), states[:50].std(axis=0)
    online = RLSReadout(1.0, standardise_steps=50).fit(states, targets)
    ridge = RidgeReadout(1.0, standardise=False, solver="qr").fit((states - centre) / spread, targets)
    assert relative(online.predict(states), ridge.predict((states - centre) / spread)) < 1e-10
    assert relative(online.weights_, ridge.weights_ / spread) < 1e-10


def windowed(states: np.ndarray, targets: np.ndarray, forgetting: float, penalty: float) -> np.ndarray:
    """Weights and bias (features + 1, outputs) of the exponentially weighted least squares problem, solved at once."""
    rows = np.hstack([states, np.ones((len(states), 1))])
    weight = forgetting ** ((len(rows) - 1 - np.arange(len(rows))) / 2)
    prior = np.sqrt(penalty) * np.eye(rows.shape[1])
    prior[-1] = 0
    stacked = np.vstack([rows * weight[:, None], prior])
    wanted = np.vstack([targets * weight[:, None], np.zeros((rows.shape[1], targets.shape[1]))])
    return np.linalg.lstsq(stacked, wanted, rcond=None)[0]


def test_rls_with_forgetting_is_least_squares_on_a_fading_window() -> None:
    states, targets = problem(rows=2000)
    targets[1000:] += states[1000:, :1] * 4
    online = RLSReadout(1e-8, forgetting=0.98, standardise=False).fit(states, targets)
    exact = windowed(states, targets, 0.98, 1e-8)
    assert relative(online.weights_.T, exact[:-1]) < 1e-7
    # A penalty that matters lies between its limits, alpha / e and alpha.
    online = RLSReadout(50.0, forgetting=0.98, standardise=False).fit(states, targets)
    sizes = [np.linalg.norm(windowed(states, targets, 0.98, alpha)[:-1]) for alpha in (50.0, 50.0 / np.e)]
    assert sizes[0] < np.linalg.norm(online.weights_) < sizes[1]


def textbook_rls(rows: np.ndarray, targets: np.ndarray, forgetting: float, P: np.ndarray) -> np.ndarray:
    """Answers before each update, by the equations of the textbooks; without a bias and renewed penalties."""
    W, answers = np.zeros((rows.shape[1], targets.shape[1])), []
    for x, y in zip(rows, targets, strict=True):
        answers.append(x @ W)
        k = P @ x / (forgetting + x @ P @ x)
        W = W + np.outer(k, y - x @ W)
        P = (P - np.outer(k, x @ P)) / forgetting
    return np.array(answers)


def test_answers_come_before_the_update() -> None:
    states, targets = problem(rows=150)
    readout = RLSReadout(0.5, forgetting=1.0, standardise=False, bias=False)
    expected = textbook_rls(states, targets, 1.0, np.eye(12) / 0.5)
    assert np.max(np.abs(readout.predict_then_update(states, targets) - expected)) < 1e-9
    # While few rows are there, the penalties are not yet renewed; the first row does not forget the prior.
    readout = RLSReadout(0.5, forgetting=0.9999, standardise=False, bias=False)
    expected = textbook_rls(states, targets, 0.9999, np.eye(12) / 0.5 * 0.9999)
    assert np.max(np.abs(readout.predict_then_update(states, targets) - expected)) < 1e-9


@pytest.mark.parametrize("normalised", [True, False])
def test_lms_equals_its_equation(normalised: bool) -> None:
    states, targets = problem(rows=300)
    rate = 0.4 if normalised else 0.002
    rows, W, answers = np.hstack([states, np.ones((300, 1))]), np.zeros((13, 3)), []
    for x, y in zip(rows, targets, strict=True):
        answers.append(x @ W)
        W += rate / (x @ x if normalised else 1.0) * np.outer(x, y - x @ W)
    readout = LMSReadout(rate, normalised=normalised, standardise=False)
    assert np.max(np.abs(readout.predict_then_update(states, targets) - answers)) < 1e-9
    assert np.max(np.abs(readout.weights_.T - W[:-1])) < 1e-10
    assert np.max(np.abs(readout.bias_ - W[-1])) < 1e-10


# ---- chunks, steps, sequences side by side


MADE = [
    lambda: RLSReadout(0.1),
    lambda: RLSReadout(0.1, forgetting=0.99, standardise_steps=30),
    lambda: RLSReadout(0.1, forgetting=0.7, standardise=False),
    lambda: RLSReadout(0.1, forgetting=0.95, bias=False),
    lambda: LMSReadout(0.3),
    lambda: LMSReadout(0.3, bias=False, standardise_steps=7),
]


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize("batch", [1, 30])
def test_chunks_and_single_steps_make_no_difference(make: Any, batch: int) -> None:
    states, targets = (
        array.reshape(batch, -1, array.shape[1]) for array in problem(rows=(130 if batch < 60 else 40) * batch)
    )
    whole, chunks, steps = make(), make(), make()
    expected = whole.predict_then_update(states, targets)
    parts = [slice(0, 1), slice(1, 2), slice(2, 21), slice(21, states.shape[1])]
    in_chunks = np.concatenate(
        [chunks.predict_then_update(states[:, part], targets[:, part]) for part in parts], axis=1
    )
    in_steps = np.stack([steps.step(states[:, t], targets[:, t]) for t in range(states.shape[1])], axis=1)
    assert relative(in_chunks, expected) < 1e-8
    assert relative(in_steps, expected) < 1e-8
    for other in (chunks, steps):
        assert relative(other.solve().weights_, whole.solve().weights_) < 1e-8
        assert other.n_samples_ == whole.n_samples_ == states.shape[0] * states.shape[1]


def test_a_step_of_all_sequences_is_answered_before_any_of_it_is_learned() -> None:
    states, targets = (array.reshape(2, 200, -1) for array in problem(rows=400))
    changed = targets.copy()
    changed[0, 150] += 100.0
    for make in MADE:
        one, other = make().predict_then_update(states, targets), make().predict_then_update(states, changed)
        assert np.max(np.abs(one[:, :151] - other[:, :151])) < 1e-9
        assert np.max(np.abs(one[:, 151] - other[:, 151])) > 1e-3


def test_sequences_side_by_side_forget_as_one_does() -> None:
    states, targets = problem(rows=400)
    one = RLSReadout(0.2, forgetting=0.99, standardise=False).fit(states, targets)
    # The same row twice at a step counts twice, and so does the penalty of half the size.
    twice = RLSReadout(0.4, forgetting=0.99, standardise=False).fit(np.stack([states] * 2), np.stack([targets] * 2))
    assert relative(twice.weights_, one.weights_) < 1e-9


def test_the_washout_is_answered_but_not_learned() -> None:
    states, targets = problem()
    broken, unknown = states.copy(), targets.copy()
    broken[3], unknown[:10] = np.nan, np.nan
    online = RLSReadout(1.0, washout=10)
    first = online.predict_then_update(broken, unknown)
    assert not first[:10].any()
    expected = RLSReadout(1.0).fit(states[10:], targets[10:])
    assert relative(online.weights_, expected.weights_) < 1e-12
    # A new sequence begins with another washout; a chunk that goes on does not.
    again = online.predict_then_update(states[:20], targets[:20], new_sequence=True)
    assert relative(again[:10], expected.predict(states[:10])) < 1e-12
    assert online.n_samples_ == 700 - 10 + 10
    online.partial_fit(states[:20], targets[:20])
    assert online.n_samples_ == 720


def test_the_first_steps_are_held_back_and_answered_with_nothing() -> None:
    states, targets = problem()
    online = RLSReadout(1.0, standardise_steps=40)
    assert not online.predict_then_update(states[:30], targets[:30]).any()
    with pytest.raises(NotSolved, match="held back"):
        online.predict(states)
    assert not online.predict_then_update(states[30:40], targets[30:40]).any()
    assert online.predict_then_update(states[40:41], targets[40:41]).all()
    # Fewer steps than that are learned when nothing more is to come.
    few = RLSReadout(1.0, standardise_steps=40).fit(states[:30], targets[:30])
    assert (
        relative(few.predict(states[:30]), RidgeReadout(1.0).fit(states[:30], targets[:30]).predict(states[:30])) < 1e-9
    )


def test_a_node_that_comes_alive_late_is_not_blown_up() -> None:
    states, targets = problem(rows=2000)
    states[:500, 4] = 0.25 * (1 + 1e-16 * np.arange(500))
    for readout in (RLSReadout(1e-6), LMSReadout(0.3)):
        answers = readout.predict_then_update(states, targets)
        assert np.abs(answers).max() < 10 * np.abs(targets).max()
        assert np.mean((answers[1500:] - targets[1500:]) ** 2) < 0.2 * targets[1500:].var()


# ---- tracking, and what a long life brings


@pytest.mark.parametrize("forgetting", [0.9, 0.99, 0.999])
def test_poor_excitation_blows_nothing_up(forgetting: float) -> None:
    states, targets = problem(rows=600, outputs=1)
    idle = np.repeat(states[:1], 10_000, axis=0)
    readout = RLSReadout(1e-6, forgetting=forgetting)
    readout.predict_then_update(states, targets)
    readout.predict_then_update(idle, np.repeat(targets[:1], len(idle), axis=0))
    root = readout._rule.root  # type: ignore[union-attr]
    # The variance of no weight exceeds that under the penalty alone, 1 / (alpha / e), up to a step's forgetting.
    assert np.square(root[:-1]).sum(axis=1).max() < 1.1 * np.e / 1e-6
    again = readout.predict_then_update(states, targets, new_sequence=True)
    assert np.abs(again).max() < 10 * np.abs(targets).max()
    error = np.mean((again[-100:] - targets[-100:]) ** 2)
    assert error < (0.5 if forgetting > 0.9 else 2.0)


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_after_very_many_updates_the_weights_are_finite_and_exact(rows: int) -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((5, 1))
    readouts = [RLSReadout(1e-4), RLSReadout(1e-3, forgetting=0.999), LMSReadout(0.1)]
    moments = np.zeros((7, 7))
    for _ in range(10):
        states = np.tanh(rng.standard_normal((2, rows // 20, 5)))
        targets = states @ truth + 0.7 + 0.1 * rng.standard_normal((*states.shape[:2], 1))
        joined = np.concatenate([states, np.ones_like(targets), targets], axis=2).reshape(-1, 7)
        moments += joined.T @ joined
        for readout in readouts:
            readout.partial_fit(states, targets)
    assert readouts[0].n_samples_ == rows
    exact = np.linalg.solve(moments[:6, :6], moments[:6, 6])
    assert np.abs(readouts[0].weights_[0] - exact[:5]).max() < 1e-8
    for readout in readouts:
        assert np.abs(readout.weights_.T - truth).max() < 0.05
        assert np.abs(readout.bias_ - 0.7).max() < 0.05


@pytest.mark.slow
def test_very_many_single_updates_stay_finite() -> None:
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((4, 1))
    readout = RLSReadout(1e-6, forgetting=0.9995)
    for _ in range(80):
        states = np.tanh(rng.standard_normal((1000, 4)))
        # Every other thousand steps nothing but a constant comes in.
        states = states if rng.random() < 0.5 else np.repeat(states[:1], 1000, axis=0)
        for x, y in zip(states, states @ truth, strict=True):
            readout.step(x, y)
    assert np.abs(readout.weights_.T - truth).max() < 1e-3


# ---- what is refused, and that nothing is lost by it


@pytest.mark.parametrize(("rate", "constant"), [(50.0, False), (1e20, True)])
def test_lms_that_diverges_says_so_and_keeps_its_weights(rate: float, constant: bool) -> None:
    """Also where the equations of a block of steps become singular, as by large equal numbers."""
    states, targets = problem(rows=3000)
    readout = LMSReadout(0.01, normalised=False).fit(states[:200], targets[:200])
    before = readout.weights_
    readout._rule._rate = rate  # type: ignore[union-attr]
    with pytest.raises(InputRangeError, match="diverges"):
        readout.partial_fit(np.ones_like(states) if constant else states, targets)
    np.testing.assert_array_equal(readout.weights_, before)
    assert readout.n_samples_ == 200


# ---- files


# ---- in an experiment


def test_learning_on_is_what_predict_then_update_does_to_the_same_states(tmp_path: Path) -> None:
    experiment = Experiment(
        {
            "task": {"kind": "narma", "train_steps": 500, "test_steps": 300},
            "reservoir": {"kind": "esn", "nodes": 20},
            "readout": {"kind": "rls", "forgetting": 0.99, "keep_learning": True},
            "training": {"continuous": True},
            "run": {"folder": str(tmp_path), "chunk_steps": 77},
        }
    )
    (row,) = experiment.run(report=False).rows
    point = experiment.points[0]
    task = point.config.task.build()
    with open_reservoir(point.config.reservoir, inputs=task.inputs) as device:
        states = device.run(np.concatenate([task.train.inputs, task.test.inputs], axis=1))[0]
    targets = np.concatenate([task.train.targets, task.test.targets], axis=1)[0]
    outputs = RLSReadout(forgetting=0.99).predict_then_update(states, targets)[500:]
    assert row.evaluation.metrics["nmse"] == pytest.approx(task.evaluate(outputs[None]).metrics["nmse"], rel=1e-5)


@pytest.mark.slow
def test_padding_is_neither_learned_nor_answered(tmp_path: Path) -> None:
    experiment = Experiment(
        {
            "task": {"kind": "japanese_vowels"},
            "reservoir": {"kind": "esn", "nodes": 10},
            "readout": {"kind": "rls", "keep_learning": True},
            "run": {"folder": str(tmp_path)},
        }
    )
    try:
        task = experiment.task_of(experiment.points[0])
    except ConfigurationError as error:
        pytest.skip(f"no data: {error}")
    experiment.run(report=False)
    readout = RLSReadout.load(next(tmp_path.glob("*/readout/*.safetensors")))
    assert task.train.lengths is not None
    assert task.test.lengths is not None
    assert readout.n_samples_ == task.train.lengths.sum() + task.test.lengths.sum()


def test_where_learning_on_makes_no_sense() -> None:
    document = {
        "task": {"kind": "lorenz", "closed_loop": {"starts": 2}},
        "reservoir": {"kind": "esn", "nodes": 10},
        "readout": {"kind": "rls", "keep_learning": True},
    }
    with pytest.raises(ConfigurationError, match="closed loop has no targets"):
        Experiment(document).estimate()
    unknown = np.where(np.arange(9)[None, :, None] < 4, np.nan, 1.0)
    RlsConfig(kind="rls", washout=4).check_targets(unknown)
    with pytest.raises(ConfigurationError, match=r"set readout\.washout to at least 4"):
        RlsConfig(kind="rls", washout=3).check_targets(unknown)
    with pytest.raises(ConfigurationError, match="below 2"):
        Experiment({**document, "readout": {"kind": "lms", "rate": 2.5}})
