from __future__ import annotations

import pickle
import tracemalloc
import warnings
from contextlib import nullcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_problem import problem, relative
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.readout import Chunk, IllConditionedWarning, RidgeReadout

SOLVERS = ["normal", "qr"]
ALPHAS = np.logspace(-4, 4, 17)


def delay_loop(rows: int = 400, nodes: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Virtual nodes of a slow loop see nearly the same input: states as alike as powers of one number."""
    t = np.linspace(0.0, 1.0, rows)
    states = np.stack([t**k for k in range(1, nodes + 1)], axis=1)
    targets = states @ np.cos(np.arange(nodes))[:, None]
    return states, targets


# ---- agreement with scikit-learn


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("alpha", [1e-6, 10.0, np.array([1e-3, 1.0, 50.0])], ids=str)
def test_equals_sklearn(solver: Any, bias: bool, standardise: bool, alpha: Any) -> None:
    states, targets = problem()
    ours = RidgeReadout(alpha, solver=solver, bias=bias, standardise=standardise).fit(states, targets)
    ridge = Ridge(alpha, fit_intercept=bias, solver="svd")
    theirs = make_pipeline(scaling(bias), ridge) if standardise else ridge
    theirs.fit(states, targets)
    assert relative(ours.predict(states), theirs.predict(states)) < 1e-10
    scale = np.sqrt(np.mean((states - (states.mean(0) if bias else 0)) ** 2, axis=0)) if standardise else 1.0
    assert relative(ours.weights_, ridge.coef_ / scale) < 1e-8
    if not bias:
        assert not ours.bias_.any()


def scaling(bias: bool) -> Any:
    """What standardise does, as a scikit-learn transformer."""
    if bias:
        return StandardScaler()

    class RootMeanSquare(TransformerMixin, BaseEstimator):
        def fit(self, x: Any, y: Any = None) -> Any:
            self.scale_ = np.sqrt(np.mean(x**2, axis=0))
            return self

        def transform(self, x: Any) -> Any:
            return x / self.scale_

    return RootMeanSquare()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("offset", [30.0, 1e6])
def test_large_offset_costs_no_digits(solver: Any, offset: float) -> None:
    states, targets = problem(rows=5000)
    states -= states.mean(axis=0)
    plain = RidgeReadout(1e-3, solver=solver).fit(states, targets)
    lifted = RidgeReadout(1e-3, solver=solver).fit(states + offset, targets)
    # The offset itself rounds the states.
    assert relative(lifted.weights_, plain.weights_) < 1e-13 + 1e-14 * offset


# ---- with and without a decomposition: an alpha for each output always takes one


def nearly_dependent(distance: float) -> tuple[np.ndarray, np.ndarray]:
    states, targets = problem()
    twin = states[:, :1] + distance * np.random.default_rng(9).standard_normal((len(states), 1))
    return np.hstack([states, twin]), targets


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 1e-6, 1.0, 1e6])
def test_one_alpha_equals_the_same_for_each_output(alpha: float, bias: bool, standardise: bool) -> None:
    states, targets = problem()
    states[:, 4] = 2.5
    options: dict[str, Any] = {"bias": bias, "standardise": standardise}
    one, each = (RidgeReadout(a, **options).fit(states, targets) for a in (alpha, [alpha] * 3))
    assert relative(one.weights_, each.weights_) < 1e-11
    assert one.rank_ == each.rank_
    assert one.condition_ == each.condition_
    assert one.report_ == each.report_ | {"alpha": alpha}


def test_learning_goes_on_after_a_solution_and_its_report_is_about_that() -> None:
    states, targets = problem()
    readout = RidgeReadout(1e-3).partial_fit(states[:300], targets[:300]).solve()
    first = RidgeReadout(1e-3).fit(states[:300], targets[:300])
    readout.partial_fit(states[300:], targets[300:])
    copied = pickle.loads(pickle.dumps(readout))
    assert copied.report_ == readout.report_ == first.report_
    np.testing.assert_array_equal(readout.weights_, first.weights_)
    assert readout.solve().report_["samples"] == 700
    assert relative(readout.weights_, RidgeReadout(1e-3).fit(states, targets).weights_) < 1e-10


@pytest.mark.parametrize("distance", np.logspace(-9, -3, 7))
def test_nearly_dependent_features_are_refused_at_once(distance: float) -> None:
    states, targets = nearly_dependent(distance)
    rank = RidgeReadout(1.0).fit(states, targets).rank_
    assert rank == 13 if distance > 1e-5 else rank == 12 if distance < 1e-8 else True
    if rank == 13:
        assert RidgeReadout(0.0).fit(states, targets).rank_ == 13
    else:
        with pytest.raises(ConfigurationError, match="linearly dependent"):
            RidgeReadout(0.0).fit(states, targets)


@pytest.mark.parametrize("alpha", np.logspace(-20, 0, 11))
def test_a_badly_conditioned_problem_warns_at_once(alpha: float) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        readout = RidgeReadout(alpha).fit(*delay_loop())
        warned_at = [w.filename for w in caught]
        badly = readout.condition_ > 7e7
    assert warned_at == ([__file__] if badly else [])
    assert len(caught) == len(warned_at)
    assert badly == any("condition number" in note for note in readout.report_["notes"])
    assert badly or alpha > 1e-14
    assert not badly or alpha < 1e-11


# ---- one pass over chunks


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 300), max_size=6),
    batch=st.integers(1, 3),
    washout=st.integers(0, 40),
    solver=st.sampled_from(SOLVERS),
    alpha=st.sampled_from([1e-3, "gcv", "kfold"]),
)
def test_chunks_equal_whole(cuts: list[int], batch: int, washout: int, solver: Any, alpha: Any) -> None:
    states, targets = problem(rows=300 * batch, nodes=5, outputs=2)
    states, targets = states.reshape(batch, 300, 5), targets.reshape(batch, 300, 2)
    options: dict[str, Any] = {"solver": solver, "washout": washout, "block_steps": 20, "folds": 3}
    whole = RidgeReadout(alpha, **options).fit(states, targets)
    chunked = RidgeReadout(alpha, **options)
    edges = [0, *sorted(cuts), 300]
    for start, stop in pairwise(edges):
        chunked.partial_fit(states[:, start:stop], targets[:, start:stop])
    chunked.solve()
    assert chunked.n_samples_ == whole.n_samples_ == batch * (300 - washout)
    assert chunked.alpha_ == whole.alpha_
    other = RidgeReadout(alpha, **{**options, "solver": "normal" if solver == "qr" else "qr"}).fit(states, targets)
    assert relative(other.condition_, whole.condition_) < 1e-9
    assert relative(chunked.weights_, whole.weights_) < 1e-10
    if whole.scores_ is not None:
        assert relative(chunked.scores_, whole.scores_) < 1e-10


def test_chunking_one_sequence_changes_no_bit() -> None:
    states, targets = problem(rows=9000)
    whole = RidgeReadout().fit(states, targets)
    chunked = RidgeReadout()
    for start in range(0, 9000, 37):
        chunked.partial_fit(states[start : start + 37], targets[start : start + 37])
    assert np.array_equal(chunked.solve().weights_, whole.weights_)


def test_washout_is_dropped_from_every_sequence() -> None:
    states, targets = problem(rows=300)
    undefined = targets.copy()
    undefined[[*range(10), *range(100, 110), *range(200, 210)]] = np.nan
    kept = np.r_[10:100, 110:200, 210:300]
    expected = RidgeReadout().fit(states[kept], targets[kept])
    one_by_one = RidgeReadout(washout=10)
    for start in (0, 100, 200):
        for a, b in ((0, 4), (4, 30), (30, 100)):
            part = slice(start + a, start + b)
            one_by_one.partial_fit(states[part], undefined[part], new_sequence=a == 0)
    batch = RidgeReadout(washout=10).fit(states.reshape(3, 100, -1), undefined.reshape(3, 100, -1))
    from_chunks = RidgeReadout(washout=10).fit(
        [Chunk(states[i : i + 100], undefined[i : i + 100], None, True) for i in (0, 100, 200)]
    )
    for readout in (one_by_one.solve(), batch, from_chunks):
        assert readout.n_samples_ == 270
        assert relative(readout.weights_, expected.weights_) < 1e-11


@pytest.mark.parametrize("solver", SOLVERS)
def test_memory_does_not_grow_with_length(solver: Any) -> None:
    rng = np.random.default_rng(0)
    states, targets = rng.standard_normal((1000, 20)).astype(np.float32), rng.standard_normal((1000, 2))

    def peak(chunks: int) -> int:
        readout = RidgeReadout("kfold", solver=solver)
        tracemalloc.start()
        for _ in range(chunks):
            readout.partial_fit(states, targets)
        readout.solve()
        result = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return result

    peak(2)
    assert peak(60) < 1.1 * peak(12)


# ---- accuracy


def exact_ridge(states: np.ndarray, targets: np.ndarray, alpha: float) -> np.ndarray:
    """Centred ridge regression in rational arithmetic: no rounding at all until the end."""
    x = [[Fraction(float(v)) for v in row] for row in states]
    y = [Fraction(float(v)) for v in targets[:, 0]]
    n, k = len(x), len(x[0])
    means = [sum((row[j] for row in x), Fraction(0)) / n for j in range(k)]
    mean = sum(y, Fraction(0)) / n
    x = [[v - m for v, m in zip(row, means, strict=True)] for row in x]
    y = [v - mean for v in y]
    system = [
        [sum((r[i] * r[j] for r in x), Fraction(0)) + (Fraction(alpha) if i == j else 0) for j in range(k)]
        + [sum((r[i] * v for r, v in zip(x, y, strict=True)), Fraction(0))]
        for i in range(k)
    ]
    for i in range(k):
        for row in system[i + 1 :]:
            factor = row[i] / system[i][i]
            row[i:] = [a - factor * b for a, b in zip(row[i:], system[i][i:], strict=True)]
    solution = [Fraction(0)] * k
    for i in reversed(range(k)):
        known = sum((system[i][j] * solution[j] for j in range(i + 1, k)), Fraction(0))
        solution[i] = (system[i][k] - known) / system[i][i]
    return np.array([float(v) for v in solution])


def test_qr_is_accurate_where_normal_equations_are_not() -> None:
    states, targets = delay_loop(rows=60, nodes=12)
    alpha = 1e-18
    exact = exact_ridge(states, targets, alpha)
    qr = RidgeReadout(alpha, solver="qr", standardise=False).fit(states, targets)
    with pytest.warns(IllConditionedWarning, match="solver='qr'"):
        normal = RidgeReadout(alpha, solver="normal", standardise=False).fit(states, targets)
    assert relative(qr.weights_[0], exact) < 1e-7
    assert relative(normal.weights_[0], exact) > 1e-1
    assert normal.report_["notes"]


@pytest.mark.parametrize("search", ["gcv", "kfold"])
def test_a_search_keeps_to_what_the_solver_can_compute(search: Any) -> None:
    states, targets = delay_loop(rows=1000, nodes=14)
    readout = RidgeReadout(search, alphas=np.logspace(-20, 2, 45)).fit(states, targets)
    assert readout.condition_ < 7e7
    assert relative(readout.predict(states), targets) < 1e-5


def test_float32_states_are_summed_in_float64() -> None:
    states, targets = problem(rows=20_000)
    single = states.astype(np.float32)
    from_single = RidgeReadout(1e-6).fit(single, targets)
    from_double = RidgeReadout(1e-6).fit(single.astype(np.float64), targets)
    assert np.array_equal(from_single.weights_, from_double.weights_)


# ---- choice of alpha


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("standardise", [True, False])
def test_gcv_equals_explicit_hat_matrix(solver: Any, bias: bool, standardise: bool) -> None:
    states, targets = problem(rows=120, nodes=8)
    readout = RidgeReadout(
        "gcv", solver=solver, bias=bias, standardise=standardise, alphas=ALPHAS, per_output=True
    ).fit(states, targets)
    design = states - states.mean(0) if bias else states
    if standardise:
        design = design / np.sqrt(np.mean(design**2, axis=0))
    n = len(design)
    scores = []
    for alpha in ALPHAS:
        hat = design @ np.linalg.solve(design.T @ design + alpha * np.eye(8), design.T) + bias / n
        rest = np.eye(n) - hat
        scores.append(((rest @ targets) ** 2).mean(0) / (np.trace(rest) / n) ** 2)
    assert readout.scores_ is not None
    assert relative(readout.scores_ / np.array(scores), np.ones((17, 3))) < 1e-8
    assert np.array_equal(readout.alpha_, ALPHAS[np.argmin(scores, axis=0)])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("standardise", [True, False])
def test_kfold_equals_explicit_refits(solver: Any, bias: bool, standardise: bool) -> None:
    states, targets = problem(rows=330)
    readout = RidgeReadout(
        "kfold", solver=solver, bias=bias, standardise=standardise, alphas=ALPHAS, folds=4, block_steps=25
    ).fit(states, targets)
    fold = np.arange(330) // 25 % 4
    errors = np.zeros((17, 3))
    for held_out in range(4):
        train, test = fold != held_out, fold == held_out
        for k, alpha in enumerate(ALPHAS):
            ridge = Ridge(alpha, fit_intercept=bias)
            model = make_pipeline(scaling(bias), ridge) if standardise else ridge
            model.fit(states[train], targets[train])
            errors[k] += ((model.predict(states[test]) - targets[test]) ** 2).sum(0)
    assert readout.scores_ is not None
    assert relative(readout.scores_ / (errors / 330), np.ones((17, 3))) < 1e-8
    assert readout.alpha_ == ALPHAS[np.argmin(errors.mean(1))]


def test_kfold_blocks_go_round_over_short_sequences() -> None:
    states, targets = problem(rows=200)
    readout = RidgeReadout("kfold", folds=4, block_steps=50)
    for start in range(0, 200, 10):
        readout.partial_fit(states[start : start + 10], targets[start : start + 10], new_sequence=True)
    readout.solve()
    as_blocks = RidgeReadout("kfold", folds=4, block_steps=10).fit(states, targets)
    assert relative(readout.scores_, as_blocks.scores_) < 1e-10


def test_chunks_of_any_kind_are_the_whole() -> None:
    states, targets = problem()
    parts = [(states[i : i + 100], targets[i : i + 100]) for i in range(0, 700, 100)]
    whole = RidgeReadout().fit(states, targets)
    for source in (parts, iter(parts)):
        assert relative(RidgeReadout().fit(source).weights_, whole.weights_) < 1e-12


def test_per_output_alpha_follows_the_noise() -> None:
    states, targets = problem(rows=200, outputs=2, noise=0.0)
    targets[:, 1] = np.random.default_rng(1).standard_normal(200)
    readout = RidgeReadout("gcv", per_output=True).fit(states, targets)
    alpha = np.asarray(readout.alpha_)
    assert alpha[0] < 1e-3 < 1 < alpha[1]
    assert any("end of the grid" in note for note in readout.report_["notes"])


@pytest.mark.parametrize("solver", SOLVERS)
def test_gcv_with_fewer_rows_than_nodes(solver: Any) -> None:
    states, targets = problem(rows=30, nodes=60, outputs=1, noise=1.0)
    readout = RidgeReadout("gcv", solver=solver, alphas=ALPHAS).fit(states, targets)
    assert readout.rank_ == 29
    z = (states - states.mean(0)) / states.std(0)
    hats = [z @ np.linalg.solve(z.T @ z + a * np.eye(60), z.T) + 1 / 30 for a in ALPHAS]
    scores = [float((((np.eye(30) - h) @ targets) ** 2).mean() / (1 - np.trace(h) / 30) ** 2) for h in hats]
    assert readout.scores_ is not None
    assert relative(readout.scores_[:, 0] / np.array(scores), np.ones(17)) < 1e-5


# ---- degenerate features


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dead_nodes_are_dropped(solver: Any, dtype: Any) -> None:
    states, targets = problem(nodes=6)
    states = states.astype(dtype)
    dead = np.zeros((len(states), 3), dtype=dtype)
    dead[:, 1] = 0.7
    dead[:, 2] = np.where(np.arange(len(states)) % 3, 1234.5, np.nextafter(dtype(1234.5), dtype(2000)))
    weak = (1e3 + 1e-2 * states[:, :1]).astype(dtype)
    alive = np.hstack([states[:, 1:], weak])
    joined = np.insert(alive, [0, 2, 5], dead, axis=1)
    readout = RidgeReadout(1e-3, solver=solver).fit(joined, targets)
    assert readout.dead_nodes_.tolist() == [0, 3, 7]
    assert readout.report_["dead_nodes"] == 3
    assert not readout.weights_[:, [0, 3, 7]].any()
    reference = RidgeReadout(1e-3, solver=solver).fit(alive, targets)
    assert relative(np.delete(readout.weights_, [0, 3, 7], axis=1), reference.weights_) < 1e-9


@pytest.mark.parametrize("solver", SOLVERS)
def test_collinear_one_hot_inputs(solver: Any) -> None:
    rng = np.random.default_rng(0)
    states, targets = problem(rows=3000, nodes=10)
    inputs = np.eye(24)[rng.integers(0, 24, 3000)] - 0.5
    with pytest.raises(ConfigurationError, match=r"rank 33 of 34 .*input_connection=False"):
        RidgeReadout(0.0, solver=solver, input_connection=True).fit(states, targets, inputs)
    readout = RidgeReadout(1e-6, solver=solver, input_connection=True).fit(states, targets, inputs)
    assert readout.rank_ == 33
    assert any("linearly dependent" in note for note in readout.report_["notes"])
    pipeline = make_pipeline(StandardScaler(), Ridge(1e-6, solver="svd"))
    pipeline.fit(np.hstack([states, inputs]), targets)
    assert relative(readout.predict(states, inputs), pipeline.predict(np.hstack([states, inputs]))) < 1e-7
    with pytest.warns(IllConditionedWarning, match="rounding errors") if solver == "normal" else nullcontext():
        RidgeReadout(1e-20, solver=solver, input_connection=True).fit(states, targets, inputs)
    with pytest.raises(ConfigurationError, match=r"alpha is 1e-300, too small to do anything, .* give a larger alpha"):
        RidgeReadout(1e-300, solver=solver, input_connection=True).fit(states, targets, inputs)


@pytest.mark.parametrize("solver", SOLVERS)
def test_alpha_zero_is_least_squares_when_determined(solver: Any) -> None:
    states, targets = problem()
    readout = RidgeReadout(0, solver=solver).fit(states, targets)
    expected = np.linalg.lstsq(np.hstack([states, np.ones((700, 1))]), targets, rcond=None)[0]
    assert relative(readout.weights_, expected[:-1].T) < 1e-10
    with pytest.raises(ConfigurationError, match="more steps than there are features"):
        RidgeReadout(0, solver=solver).fit(states[:10], targets[:10])
    with pytest.raises(ConfigurationError, match="linearly dependent"):
        RidgeReadout([1.0, 0.0, 1.0], solver=solver).fit(np.hstack([states, states]), targets)


def test_a_refused_first_chunk_settles_nothing() -> None:
    states, targets = problem(rows=50)
    readout = RidgeReadout(input_connection=True)
    with pytest.raises(ConfigurationError, match="inputs of every chunk"):
        readout.partial_fit(states, targets)
    with pytest.raises(InputRangeError, match="inputs hold nan"):
        readout.partial_fit(states[:, :3], targets, np.full((50, 1), np.nan))
    readout.partial_fit(states, targets, states[:, :1] ** 2).solve()
    assert readout.weights_.shape == (3, 13)


# ---- files


def test_the_scale_of_the_features_is_that_of_the_solution(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def rows(mean: float, features: int = 5) -> tuple[np.ndarray, np.ndarray]:
        return random.normal(mean, 3.0, (400, features)), random.normal(size=(400, 2))

    readout = RidgeReadout(1e-3)
    states, targets = rows(1000.0)
    readout.fit(states, targets)

    def check(one: RidgeReadout, states: np.ndarray) -> None:
        scale = one.linear_form().scale
        assert scale is not None
        np.testing.assert_allclose(scale.centre, states.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(scale.spread, states.std(0), rtol=1e-9)

    check(readout, states)
    # What is not solved for yet is not in the weights, and reset leaves them.
    readout.partial_fit(*rows(0.0))
    check(readout, states)
    readout.reset()
    check(readout, states)
    readout.save(tmp_path / "r.safetensors")
    loaded = RidgeReadout.load(tmp_path / "r.safetensors")
    check(loaded, states)
    wider, targets = rows(0.0, 7)
    loaded.fit(wider, targets).reset()
    check(loaded, wider)
    loaded.save(tmp_path / "r.safetensors")
    check(RidgeReadout.load(tmp_path / "r.safetensors"), wider)
