"""A torch module and estimators of scikit-learn, on states that are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.readout.configuration import NotSolved
from reservoir_hw.readout.own.configuration import SklearnConfig, TorchConfig
from reservoir_hw.readout.own.sklearn_readout import SklearnReadout
from reservoir_hw.readout.training.options import TrainingOptions

RANDOM = np.random.default_rng(0)
STATES = RANDOM.uniform(-1, 1, (3, 40, 5)).astype(np.float32)
TARGETS = np.stack([STATES @ [1, -2, 0, 0.5, 0] + 0.3, STATES @ [0, 1, 1, 0, 0]], axis=2).astype(np.float32)


def estimator(name: str, targets: np.ndarray = TARGETS, **params: Any) -> SklearnReadout:
    readout = SklearnConfig(kind="sklearn", estimator=name, params=params, washout=4).build()
    for part in (slice(0, 10), slice(10, 40)):
        readout.partial_fit(STATES[:, part], targets[:, part], new_sequence=part.start == 0)
    return readout.solve()


@pytest.mark.slow
def test_a_network_learns_what_is_known_behind_the_washout(tmp_path: Path) -> None:
    states, targets = STATES.copy(), TARGETS.copy()
    # Of the washout anything may be said, and of what is not known nothing.
    states[:, :4], targets[:, :4] = np.nan, 1e6
    targets[:, 10::7, 1] = np.nan
    settings = {"kind": "torch", "module": "own_parts:Net", "loss": "own_parts:huber", "washout": 4}
    readout = TorchConfig.model_validate(settings).build()
    readout.options = TrainingOptions(epochs=200, context=16, batch=6, learning_rate=0.02, accelerator="cpu")
    with pytest.raises(NotSolved):
        readout.predict(STATES)
    for part in (slice(0, 10), slice(10, 40)):
        readout.partial_fit(states[:, part], targets[:, part], new_sequence=part.start == 0)
    readout.solve()
    known = ~np.isnan(targets[:, 4:]).any(axis=2)
    assert readout.report_["samples"] == known.sum()
    assert np.abs(readout.predict(STATES) - TARGETS)[:, 4:].mean() < 0.05
    with pytest.raises(ShapeError, match="as in training"):
        readout.predict(STATES[..., :4])
    readout.save(tmp_path / "net.safetensors")
    again = type(readout).load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again.predict(STATES), readout.predict(STATES))
    with pytest.raises(InputRangeError, match="states hold nan"):
        readout.partial_fit(np.full((1, 10, 5), np.nan), np.zeros((1, 10, 2)), new_sequence=True)


@pytest.mark.parametrize(
    "name",
    [
        "sklearn.linear_model:LinearRegression",
        "sklearn.linear_model:Ridge",
        "sklearn.linear_model:Lars",
        "sklearn.linear_model:ElasticNet",
        "sklearn.cross_decomposition:PLSRegression",
        "sklearn.svm:LinearSVR",
    ],
)
def test_linear_estimators_are_known_by_what_they_compute(name: str, tmp_path: Path) -> None:
    params = {"ElasticNet": {"alpha": 1e-4}, "LinearSVR": {"max_iter": 100000}}.get(name.partition(":")[2], {})
    readout = estimator(name, **params)
    form = readout.linear_form()
    np.testing.assert_allclose(STATES @ form.weights.T + form.bias, readout.predict(STATES), atol=1e-5)
    readout.save(tmp_path / "readout.safetensors")
    again = SklearnReadout.load(tmp_path / "readout.safetensors")
    np.testing.assert_array_equal(again.predict(STATES), readout.predict(STATES))


@pytest.mark.parametrize(
    "name", ["sklearn.svm:SVR", "sklearn.ensemble:RandomForestRegressor", "sklearn.linear_model:PoissonRegressor"]
)
def test_what_has_coefficients_and_is_not_linear_is_none(name: str, tmp_path: Path) -> None:
    readout = estimator(name, np.exp(TARGETS))
    assert readout.predict(STATES).shape == TARGETS.shape
    with pytest.raises(ConfigurationError, match="is no linear form: it cannot be exported"):
        readout.linear_form()
    readout.save(tmp_path / "readout.safetensors")
    with pytest.raises(ConfigurationError, match="its fit was not kept"):
        SklearnReadout.load(tmp_path / "readout.safetensors")


@pytest.mark.parametrize("name", ["sklearn.linear_model:LogisticRegression", "sklearn.neighbors:KNeighborsClassifier"])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_that_are_missing_are_never_chosen(name: str, classes: int) -> None:
    labels = (STATES[..., 0] > 0).astype(int) + (classes - 2)
    readout = estimator(name, np.eye(classes, dtype=np.float32)[labels])
    assert (readout.predict(STATES).argmax(axis=2) == labels).mean() > 0.8


def test_one_output_and_classes_are_learned_with_scikit_learn_1_5(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.utils

    monkeypatch.delattr(sklearn.utils, "get_tags")
    one = TARGETS[..., :1]
    assert estimator("sklearn.linear_model:Ridge", one).predict(STATES).shape == one.shape
    classes = np.eye(2, dtype=np.float32)[(STATES[..., 0] > 0).astype(int)]
    assert estimator("sklearn.neighbors:KNeighborsClassifier", classes).predict(STATES).shape == classes.shape
