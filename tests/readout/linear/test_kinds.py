"""What every linear readout promises: ridge regression by two solvers, and both that learn online."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linear_problem import problem, relative

from reservoir_hw import Experiment
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ReservoirError, ShapeError
from reservoir_hw.readout import LMSReadout, NotSolved, RidgeReadout, RLSReadout
from reservoir_hw.readout.linear.online import LmsConfig, RlsConfig
from reservoir_hw.readout.linear.ridge import RidgeConfig

CONFIGS: dict[Any, Any] = {RidgeReadout: RidgeConfig, RLSReadout: RlsConfig, LMSReadout: LmsConfig}
CLASSES = [RidgeReadout, RLSReadout, LMSReadout]
KINDS: dict[str, Callable[..., Any]] = {
    "ridge": lambda **keys: RidgeReadout("kfold", block_steps=7, folds=4, **keys),
    "qr": lambda **keys: RidgeReadout("kfold", block_steps=7, folds=4, solver="qr", **keys),
    "rls": lambda **keys: RLSReadout(0.5, **keys),
    "lms": lambda **keys: LMSReadout(0.2, **keys),
}


# ---- settings


@pytest.mark.parametrize("made", CONFIGS)
def test_constructor_and_configuration_have_the_same_parameters_and_defaults(made: Any) -> None:
    parameters, fields = inspect.signature(made).parameters, CONFIGS[made].model_fields
    assert set(parameters) == set(fields) - {"kind", "keep_learning"}
    assert {name: p.default for name, p in parameters.items()} == {name: fields[name].default for name in parameters}
    if made in CLASSES:
        changed = {"standardise": False, "bias": False, "input_connection": True, "washout": 7}
        assert repr(CONFIGS[made](kind=made.kind, **changed).build()) == repr(made(**changed))


def test_settings_in_numpy_types() -> None:
    readout = RidgeReadout(np.array([1, 2]), washout=np.int64(3), bias=np.bool_(False), alphas=np.array([0.1, 1.0]))  # type: ignore[arg-type]
    assert repr(readout) == repr(RidgeReadout([1.0, 2.0], washout=3, bias=False, alphas=(0.1, 1.0)))
    assert RidgeReadout(np.float32(0.5)).config.alpha == RidgeReadout(np.array(0.5)).config.alpha == 0.5
    assert LMSReadout(3.0, normalised=False).config.rate == 3.0


@pytest.mark.parametrize("made", CLASSES)
def test_settings_can_be_read_and_not_changed(made: Any) -> None:
    readout = made(washout=7)
    for name in inspect.signature(made).parameters:
        assert getattr(readout, name) == getattr(readout.config, name)
    for name in {*inspect.signature(made).parameters} - {"washout", "input_connection"}:
        with pytest.raises(AttributeError, match=name):
            setattr(readout, name, 1)


def test_an_experiment_names_the_origin_of_a_wrong_setting() -> None:
    document = Document.from_mapping(
        {"task": {"kind": "narma"}, "reservoir": {"kind": "esn", "nodes": 10}, "readout": {"kind": "ridge"}}, "here"
    )
    document.set_option("readout.washout=-1")
    with pytest.raises(ConfigurationError, match=r"--set readout\.washout: readout\.washout = -1: .* equal to 0"):
        Experiment(document)
    document.set_option("readout.washout=0")
    document.set_option("readout.alpha=best")
    with pytest.raises(ConfigurationError, match=r"readout\.alpha = 'best': .* 'gcv' or 'kfold'"):
        Experiment(document)


# ---- answers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
def test_inputs_are_features_behind_the_nodes_and_the_linear_form_is_what_is_predicted(kind: str, bias: bool) -> None:
    states, targets = problem()
    inputs = np.random.default_rng(5).standard_normal((len(states), 2))
    joined = np.hstack([states, inputs])
    readout = KINDS[kind](input_connection=True, bias=bias).fit(states, targets, inputs)
    plain = KINDS[kind](bias=bias).fit(joined, targets)
    assert relative(readout.weights_, plain.weights_) < 1e-12
    answers = readout.predict(states, inputs)
    assert relative(answers, plain.predict(joined)) < 1e-12
    form = readout.linear_form()
    assert (form.weights.shape, form.bias.shape, form.nodes, form.inputs) == ((3, 14), (3,), 12, 2)
    np.testing.assert_allclose(answers, joined @ form.weights.T + form.bias, atol=1e-11)
    assert form.scale is not None
    assert form.scale.spread.shape == (14,)
    # A copy: what is done with it leaves the readout as it is.
    form.weights[:] = 0
    assert readout.weights_.any()


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_and_precisions_of_answers(kind: str) -> None:
    states, targets = problem(rows=60)
    readout = KINDS[kind]().fit(states, targets)
    whole = readout.predict(states)
    assert whole.dtype == np.float64
    assert relative(readout.predict(states.reshape(3, 20, 12)), whole.reshape(3, 20, 3)) < 1e-14
    assert relative(readout.predict(states[0]), whole[0]) < 1e-14
    single = readout.predict(states.astype(np.float32))
    assert single.dtype == np.float32
    assert relative(single, whole) < 1e-5
    if kind in ("rls", "lms"):
        for dtype in (np.float32, np.float64):
            given = states.astype(dtype)
            assert readout.predict_then_update(given, targets, new_sequence=True).dtype == dtype
        return
    # Of a new solution no weights are kept in another precision.
    assert relative(readout.fit(states, 2 * targets).predict(states.astype(np.float32)), 2 * whole) < 1e-5


# ---- what is refused, and that nothing is lost by it


STATES, TARGETS = problem(rows=50, nodes=4, outputs=2)
NAN, INF = STATES.copy(), TARGETS.copy()
NAN[[7, 9], [2, 0]] = np.nan, np.inf
INF[3, 1] = -np.inf
BAD: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((NAN, TARGETS), InputRangeError, r"states hold nan at step 7 .* node 2"),
    ((NAN[None].astype(np.float32), TARGETS[None]), InputRangeError, r"step 7 .* node 2"),
    ((STATES, INF), InputRangeError, r"targets hold -inf at step 3 .* output 1"),
    ((STATES * 1e300, TARGETS), InputRangeError, "states hold"),
    ((STATES[:, :3], TARGETS), ShapeError, "3 nodes, .* had 4"),
    ((STATES, np.hstack([TARGETS, TARGETS])), ShapeError, "4 outputs, .* had 2"),
    ((STATES, TARGETS[:-1]), ShapeError, r"targets must be \(50, outputs\)"),
    ((STATES[0], TARGETS[0]), ShapeError, r"\(batch, time, nodes\)"),
    ((STATES, TARGETS[:, 0]), ShapeError, r"targets\[..., None\]"),
    ((np.stack([STATES] * 2), np.stack([TARGETS] * 2)), ShapeError, "new_sequence=True"),
    ((STATES, TARGETS, STATES), ConfigurationError, "does not use them"),
    ((STATES * 1j, TARGETS), ConfigurationError, "complex"),
    (([["a"] * 4] * 50, TARGETS), ConfigurationError, "real numbers"),
    (([[1.0], [1.0, 2.0]], TARGETS), ShapeError, "different lengths"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_chunk_leaves_no_trace(kind: str) -> None:
    states, targets = problem(rows=120, nodes=4, outputs=2)
    clean, tried = (KINDS[kind](washout=3).partial_fit(states[:60], targets[:60]) for _ in range(2))
    for chunk, error, message in BAD:
        for learn in (tried.partial_fit, getattr(tried, "predict_then_update", tried.partial_fit)):
            with pytest.raises(error, match=message) as caught:
                learn(*chunk)
            assert isinstance(caught.value, ReservoirError)
    for readout in (clean, tried):
        readout.partial_fit(states[60:], targets[60:]).solve()
    np.testing.assert_array_equal(tried.weights_, clean.weights_)
    np.testing.assert_array_equal(tried.predict(states), clean.predict(states))
    if kind in ("ridge", "qr"):
        np.testing.assert_array_equal(tried.scores_, clean.scores_)


def fitted(kind: Any, **keys: Any) -> Any:
    inputs = STATES[:, :2] if keys.get("input_connection") else None
    return kind(**keys).fit(STATES, TARGETS, inputs)


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: RidgeReadout(-1.0), ConfigurationError, r"RidgeReadout: alpha = -1\.0: .* greater than or equal to 0"),
    (lambda: RidgeReadout(np.nan), ConfigurationError, "alpha = nan: input should be a finite number"),
    (lambda: RidgeReadout("best"), ConfigurationError, "alpha = 'best': .* 'gcv'"),  # type: ignore[arg-type]
    (lambda: RidgeReadout(None), ConfigurationError, "alpha = None: input should be a valid number"),  # type: ignore[arg-type]
    (lambda: RidgeReadout([]), ConfigurationError, "alpha: .* at least 1 item"),
    (lambda: RidgeReadout([1.0, -1.0]), ConfigurationError, r"alpha\.1 = -1\.0: input should be greater than or"),
    (lambda: RidgeReadout(np.ones((2, 2))), ConfigurationError, "alpha: input should be a valid number"),
    (lambda: RidgeReadout(alphas=[0.0, 1.0]), ConfigurationError, r"alphas\.0 = 0\.0: input should be greater than 0"),
    (lambda: RidgeReadout(alphas=[]), ConfigurationError, "alphas: .* at least 1 item"),
    (lambda: RidgeReadout(solver="lu"), ConfigurationError, "solver = 'lu': input should be 'normal' or 'qr'"),  # type: ignore[arg-type]
    (lambda: RidgeReadout(washout=-1), ConfigurationError, "washout = -1: input should be greater than or equal to 0"),
    (lambda: RidgeReadout(washout=1.5), ConfigurationError, r"washout = 1\.5: .* valid integer"),  # type: ignore[arg-type]
    (lambda: RidgeReadout(folds=1), ConfigurationError, "folds = 1: input should be greater than or equal to 2"),
    (lambda: RidgeReadout(block_steps=0), ConfigurationError, "block_steps = 0: input should be greater than 0"),
    (lambda: RidgeReadout(folds=1, washout=-1), ConfigurationError, "2 problems"),
    (lambda: RLSReadout(0.0), ConfigurationError, "alpha"),
    (lambda: RLSReadout(forgetting=0.0), ConfigurationError, "forgetting"),
    (lambda: RLSReadout(forgetting=1.1), ConfigurationError, "forgetting"),
    (lambda: RLSReadout(washout=-1), ConfigurationError, "washout"),
    (lambda: RLSReadout(standardise_steps=1), ConfigurationError, "standardise_steps"),
    (lambda: LMSReadout(2.0), ConfigurationError, "below 2"),
    (lambda: LMSReadout(0.0, normalised=False), ConfigurationError, "rate"),
    (lambda: RidgeReadout().fit(np.ones_like(STATES), TARGETS), ConfigurationError, "none of the 4 features varies"),
    (lambda: RidgeReadout("kfold", block_steps=20).fit(STATES, TARGETS), ConfigurationError, "Reduce block_steps"),
    (lambda: RidgeReadout([1.0, 2.0, 3.0]).fit(STATES, TARGETS), ShapeError, "alpha has 3 values, targets have 2"),
    (lambda: RidgeReadout().fit([STATES]), ConfigurationError, "chunks must be tuples"),
    (lambda: RidgeReadout().fit(STATES[:, :0], TARGETS), ShapeError, "no nodes"),
    (lambda: RidgeReadout().partial_fit(STATES, TARGETS).predict(STATES), NotSolved, r"call solve\(\)"),
    (lambda: fitted(RLSReadout).step(STATES[0], TARGETS[0, 0]), ShapeError, "a single column is target"),
    (lambda: fitted(RLSReadout).step(STATES[None], TARGETS[None]), ShapeError, "predict_then_update"),
]
for made in CLASSES:
    REFUSED += [
        (lambda made=made: made().predict(STATES), NotSolved, r"predict needs weights.* call .*fit"),
        (lambda made=made: made().report_, NotSolved, "report_ needs weights"),
        (lambda made=made: made().linear_form(), NotSolved, "needs weights"),
        (lambda made=made: made().save("x"), NotSolved, "save needs weights"),
        (lambda made=made: made().solve(), ConfigurationError, "call partial_fit first"),
        (lambda made=made: made(washout=50).fit(STATES, TARGETS), ConfigurationError, "washout of 50 steps"),
        (lambda made=made: made().fit(STATES), ConfigurationError, "targets"),
        (lambda made=made: fitted(made).predict(STATES[:, :3]), ShapeError, r"\(..., 4\)"),
        (lambda made=made: fitted(made).predict(STATES, STATES), ConfigurationError, "without the inputs"),
        (lambda made=made: fitted(made, input_connection=True).predict(STATES), ConfigurationError, "pass them to pre"),
        (lambda made=made: fitted(made, input_connection=True).predict(STATES, STATES), ShapeError, "inputs must be"),
    ]


@pytest.mark.parametrize(("use", "error", "message"), REFUSED)
def test_refused(use: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


# ---- files


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_readout_is_the_one_that_was_saved(kind: str, tmp_path: Path) -> None:
    states, targets = problem()
    given = np.hstack([states, np.ones((700, 1))]) if kind in ("ridge", "qr") else states
    inputs = states[:, :2] ** 2
    extra = {"per_output": True, "alphas": np.logspace(-4, 4, 17)} if kind in ("ridge", "qr") else {}
    readout = KINDS[kind](washout=5, input_connection=True, **extra).fit(given[:400], targets[:400], inputs[:400])
    readout.repetitions_ = 16
    path = tmp_path / "readout.safetensors"
    path.write_text("something older")
    readout.save(path)
    assert os.listdir(tmp_path) == ["readout.safetensors"]
    loaded = type(readout).load(path)
    np.testing.assert_array_equal(loaded.predict(given, inputs), readout.predict(given, inputs))
    assert (repr(loaded), loaded.report_) == (repr(readout), readout.report_)
    assert (loaded.repetitions_, loaded.n_samples_) == (16, 395)
    if kind in ("ridge", "qr"):
        for name in ("alpha_", "alphas_", "scores_", "dead_nodes_", "dead_inputs_", "rank_", "condition_"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(readout, name))
    else:
        later = given[400:], targets[400:], inputs[400:]
        one, other = (r.predict_then_update(*later, new_sequence=True) for r in (readout, loaded))
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(loaded.weights_, readout.weights_)
    other_class = CLASSES[CLASSES.index(type(readout)) - 1]
    with pytest.raises(ConfigurationError, match=f"no {other_class.kind} readout"):
        other_class.load(path)


@pytest.mark.parametrize("made", CLASSES)
def test_a_wrong_file_is_refused(made: Any, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path, wrong = tmp_path / "readout.safetensors", tmp_path / "wrong.safetensors"
    fitted(made).save(path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-20] ^= 1
    for content in (b"", b"hello", good[: len(good) // 2], bytes(flipped), b"\xff" * 64):
        wrong.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"wrong\.safetensors"):
            made.load(wrong)
    save_file({"weights": np.ones(3)}, wrong)
    with pytest.raises(ConfigurationError, match=f"no {made.kind} readout"):
        made.load(wrong)
    wrong.write_bytes(good.replace(b'"version":"1"', b'"version":"9"'))
    with pytest.raises(ConfigurationError, match="version 9"):
        made.load(wrong)
    for path, message in ((tmp_path / "missing", "there is no .* readout"), (tmp_path, "cannot be read")):
        with pytest.raises(ConfigurationError, match=message):
            made.load(path)
