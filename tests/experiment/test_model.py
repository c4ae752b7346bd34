"""A reservoir with a readout as a model, as scikit-learn has them."""

from __future__ import annotations

import gc
import json
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chemical_cell
import numpy as np
import pytest
from lab_with_knobs import Lab
from safetensors.numpy import load_file
from served import free_address, served

from reservoir_hw import Experiment, ReservoirModel, open_reservoir
from reservoir_hw.core.errors import ConfigurationError, DeviceError, NotOpen, ShapeError
from reservoir_hw.core.reservoir_config import build_reservoir, reservoir_config
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.tasks.data.task import of_numbers

ESN = {"kind": "esn", "nodes": 20, "leak_rate": 0.9, "seed": 3}
CELL = {
    "kind": "python", "call": "chemical_cell:drive", "setup_call": "chemical_cell:prepare", "nodes": 3, "inputs": 1,
    "reset_call": "chemical_cell:to_rest", "deterministic": True, "input_range": [-2, 2], "simulated": False,
    "continuity": "held",
}  # fmt: skip
STEPS = 300


def recording(steps: int = STEPS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A valve at 15 to 25 degrees, and a flow and a pressure that follow it."""
    u = np.random.default_rng(seed).uniform(15, 25, steps)
    flow = np.convolve(u, [0.5, 0.3, 0.2])[:steps]
    return u[:, None], np.stack([flow, 101_325 + 10 * np.roll(u, 1)], axis=1)


@pytest.fixture
def model() -> Iterator[ReservoirModel]:
    with ReservoirModel(ESN, {"kind": "ridge", "alpha": 1e-4}, washout=30) as one:
        yield one


@pytest.fixture(params=["esn", "python", "served"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Reservoir files: of a simulation, a device here, and one behind a server."""
    file, address = tmp_path / "lab.yaml", free_address()
    if request.param != "served":
        file.write_text(json.dumps(ESN if request.param == "esn" else CELL))
        yield str(file)
        return
    file.write_text(f"kind: zmq\naddress: {address}\n")
    with served(build_reservoir(reservoir_config(CELL)), address):
        yield str(file)


def test_the_readout_is_that_of_the_experiment_to_the_digit(lab: str, tmp_path: Path) -> None:
    X, y = recording()
    with ReservoirModel(lab, {"kind": "ridge", "alpha": 1e-4}, washout=30, folder=tmp_path).fit(X, y) as model:
        pass
    document = {
        "task": {"kind": "data", "inputs": X, "targets": y, "test": "none"}, "reservoir": lab,
        "readout": {"kind": "ridge", "alpha": 1e-4, "washout": 30}, "run": {"folder": str(tmp_path), "states": None},
    }  # fmt: skip
    result = Experiment(document).run(report=False)
    weights = [load_file(one.folder / "readout" / "000.safetensors") for one in (model.result_, result)]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_it_answers_as_the_test_of_an_experiment_does(lab: str, tmp_path: Path) -> None:
    """Series of a test begin at rest, as those of `predict`."""
    pieces = [recording(steps, seed) for seed, steps in enumerate([150, 90, 120, 200])]
    X, y = ([piece[number] for piece in pieces] for number in (0, 1))
    document = {
        "task": {"kind": "data", "inputs": X, "targets": y, "test": 0.25}, "reservoir": lab,
        "readout": {"kind": "ridge", "washout": 30}, "run": {"folder": str(tmp_path), "states": None},
    }  # fmt: skip
    result = Experiment(document).run(report=False)
    lengths = [len(one) for one in X]
    (held,) = (lengths.index(length) for length in np.asarray(result.task.test.lengths))
    with ReservoirModel(lab, washout=30) as model:
        model.fit(
            [one for number, one in enumerate(X) if number != held], [one for k, one in enumerate(y) if k != held]
        )
        assert result.task.series is not None
        expected = result.task.series.user_outputs(result.outputs()[0, : lengths[held]])
        np.testing.assert_array_equal(model.predict(X[held]), expected)
        assert model.score([X[held]], [y[held]]) == pytest.approx(result.rows[0].evaluation.metrics["r2"])


def test_it_equals_the_ridges_of_others_on_its_states(model: ReservoirModel) -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    nodes = pytest.importorskip("reservoirpy.nodes")
    X, y = recording()
    model.readout = {"kind": "ridge", "alpha": 1e-2, "standardise": False}
    answers = model.fit(X, y).predict(X)
    task = model.result_.task
    with open_reservoir(ESN, inputs=1) as reservoir:
        states = np.asarray(reservoir.run(task.train.inputs))[0, 30:].astype(np.float64)
    targets = task.train.targets[0, 30:].astype(np.float64)
    assert task.series is not None
    other = sklearn.Ridge(alpha=1e-2).fit(states, targets).predict(states)
    np.testing.assert_allclose(task.series.model_targets(answers[30:]), other, atol=1e-6)
    ridge = nodes.Ridge(ridge=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        third = ridge.fit(states, targets).run(states)
    centred = sklearn.Ridge(alpha=1e-2).fit(states, targets).predict(states)
    np.testing.assert_allclose(third, centred, atol=1e-6)


def test_series_of_different_lengths_come_back_as_they_were_given(model: ReservoirModel) -> None:
    pieces = [recording(steps, seed) for seed, steps in enumerate([150, 90, 200])]
    X, y = [piece[0] for piece in pieces], [piece[1][:, 0] for piece in pieces]
    model.fit(X, y)
    answers = model.predict(X)
    assert isinstance(answers, list)
    assert [one.shape for one in answers] == [(150,), (90,), (200,)]
    # A series is a series, whatever stands beside it, and however it is given.
    np.testing.assert_allclose(model.predict(X[1]), answers[1], rtol=1e-5)
    np.testing.assert_allclose(model.predict(X[1][:, 0]), answers[1], rtol=1e-5)
    np.testing.assert_allclose(model.predict(np.stack([X[1], X[1]]))[1], answers[1], rtol=1e-5)
    assert model.score(X, y) > 0.9


@pytest.mark.parametrize("labels", [["slow", "fast"], [10, 9], np.array(["01", "1"])])
def test_labels_come_back_as_they_are(model: ReservoirModel, labels: Any) -> None:
    time = np.arange(80)
    X = [np.sin(time[: 60 + number] + number)[:, None] + (0.2, 0.9)[number % 2] for number in range(12)]
    y = [labels[number % 2] for number in range(12)]
    assert list(model.fit(X[:8], y[:8]).predict(X[8:])) == y[8:]
    assert model.score(X[8:], y[8:]) == 1
    assert set(model.classes_) == set(labels)
    assert type(model.predict(X[:1])[0].item()) is type(np.asarray(labels)[0].item())
    with pytest.raises(ConfigurationError, match="was not in the training: split so that it is"):
        model.score(X[:1], ["other"])


def test_one_number_for_each_series(model: ReservoirModel) -> None:
    level = np.linspace(1, 5, 9)
    X = level[:, None, None] * np.ones((9, 60, 1))
    assert model.fit(X, level).predict(X).shape == (9,)
    assert model.score(X, level) > 0.99
    for wrong, told in (
        (level[:, None], "one value for each series"),
        (level[:8], "y are 8 values, and X 9 series"),
        (np.where(level > 4, np.nan, level), "holds NaN"),
    ):
        with pytest.raises(ShapeError, match=told):
            model.score(X, wrong)


def test_a_table_comes_back_as_one(model: ReservoirModel) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = recording()
    index = pandas.date_range("2026-01-01", periods=STEPS, freq="s")
    frame = pandas.DataFrame({"valve": X[:, 0], "noise": np.cos(X[:, 0])}, index=index)
    targets = pandas.DataFrame(y, index=index, columns=["flow", "pressure"])
    answers = model.fit(frame, targets).predict(frame[["noise", "valve"]])
    assert list(answers.columns) == ["flow", "pressure"]
    assert answers.index.equals(index)
    np.testing.assert_array_equal(answers.to_numpy(), model.predict(frame.to_numpy()))
    with pytest.raises(ConfigurationError, match="X has no column 'valve'"):
        model.predict(frame[["noise"]])
    assert model.fit(frame, targets["flow"]).predict(frame).name == "flow"


def test_tensors_and_data_arrays_come_back_as_they_were_given(model: ReservoirModel) -> None:
    torch, xarray = pytest.importorskip("torch"), pytest.importorskip("xarray")
    X, y = recording()
    plain = model.fit(X, y).predict(X)
    found = model.predict(torch.from_numpy(X))
    assert isinstance(found, torch.Tensor)
    assert np.array_equal(found.numpy(), plain)
    given = xarray.DataArray(X, dims=("time", "channel"), coords={"time": np.arange(STEPS) / 10})
    found = model.predict(given)
    assert found.dims == ("time", "output")
    assert found.time.equals(given.time)
    np.testing.assert_array_equal(found.to_numpy(), plain)


@pytest.mark.slow
def test_scikit_learn_finds_a_model(model: ReservoirModel) -> None:
    """What is not as in scikit-learn, and why."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    series = "rows are a series: each answer is that of all rows before"
    expected = {
        "check_methods_sample_order_invariance": series,
        "check_methods_subset_invariance": series,
        "check_fit2d_1sample": "the sentence speaks of rows, not of samples",
        "check_fit1d": "(time,) is a series of one channel",
        "check_fit2d_predict1d": "(time,) is a series of one channel",
        "check_estimators_nan_inf": "the sentence has row and column, and `nan` in small letters",
        "check_dtype_object": "another sentence",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = checks.check_estimator(
            ReservoirModel(ESN), expected_failed_checks=expected, on_skip=None, on_fail="raise"
        )
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == set(expected)


@pytest.mark.slow
def test_searches_and_pipelines(model: ReservoirModel) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = recording()
    grid = {"readout__alpha": np.logspace(-6, 6, 2), "reservoir__leak_rate": [0.9, 0.05]}
    search = selection.GridSearchCV(model, grid, cv=selection.TimeSeriesSplit(3)).fit(X, y)
    assert search.best_params_ == {"readout__alpha": 1e-6, "reservoir__leak_rate": 0.9}
    assert model.reservoir == ESN
    assert search.best_estimator_.reservoir == ESN
    piped = make_pipeline(StandardScaler(), model).fit(X, y)
    np.testing.assert_allclose(piped.predict(X), model.fit(X, y).predict(X), rtol=1e-5)


@pytest.mark.slow
def test_one_opening_serves_a_whole_validation(tmp_path: Path) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    file = tmp_path / "cell.yaml"
    file.write_text(json.dumps(CELL))
    X, y = recording()
    before, driven = chemical_cell.prepared, chemical_cell.driven
    with ReservoirModel(str(file)) as model:
        scores = selection.cross_val_score(model, X, y[:, 0], cv=5, error_score="raise")
        assert len(scores) == 5
        assert chemical_cell.prepared == before + 1
        # Each fold is the training four times, and the test once.
        assert chemical_cell.driven == driven + 5 * STEPS
        # The same cell of a program that makes its model anew.
        again = ReservoirModel(str(file)).fit(X, y)
        assert again.predict(X).shape == y.shape
        assert chemical_cell.prepared == before + 2
        again.close()
    assert not (tmp_path / "runs").exists()
    assert not Path("runs", "model").exists()


def test_an_open_reservoir_is_shared_and_left_open(tmp_path: Path) -> None:
    base = pytest.importorskip("sklearn.base")
    X, y = ((values - 20) / 5 for values in recording())
    with open_reservoir(CELL) as cell:
        before = chemical_cell.prepared
        model = ReservoirModel(cell, washout=10, scale={"inputs": "none", "targets": "none"}).fit(X, y)
        assert base.clone(model).reservoir is cell
        base.clone(model).fit(X, y)
        model.close()
        assert cell.is_open
        assert chemical_cell.prepared == before
        bundle = tmp_path / "model.rhw"
        model.export(bundle)
        with EdgeRunner(bundle, cell) as runner:
            assert runner.run(X).shape == y.shape
            runner.reset()
            # (time, channels) is one series everywhere.
            cell.reset(1)
            assert np.shape(cell.run(X)) == (STEPS, 3)
    with pytest.raises(NotOpen, match="was closed: open it"):
        model.predict(X)


def test_export_of_a_run_without_a_test(lab: str, tmp_path: Path) -> None:
    X, y = recording()
    with ReservoirModel(lab, washout=30, scale={"inputs": "none", "targets": "none"}) as model:
        X, y = (X - 20) / 5, (y - 20) / 5
        exported = model.fit(X, y[:, :1]).export(tmp_path / "model.rhw", precision="int8")
        answers = model.predict(X)
    assert lab in exported.command
    with EdgeRunner(tmp_path / "model.rhw", lab) as runner:
        assert np.abs(runner.run(X) - answers).max() < 0.2 * answers.std()


@pytest.mark.slow
def test_a_search_turns_the_knobs_of_one_open_device() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    X, y = recording(200)
    lab = Lab()
    file = lab.file()
    with ReservoirModel(file, washout=10) as model:
        grid = {"reservoir__knobs__bias_v": [0.1, 0.9]}
        search = selection.GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
        assert lab.log.count("open") == 1
        # The last fit is that of the best.
        assert lab.bias == search.best_params_["reservoir__knobs__bias_v"]
        assert file["knobs"]["bias_v"]["value"] == 0.2
    with open_reservoir(file) as device:
        device.set(bias_v=0.7)
        model = ReservoirModel(device).fit(X, y)
        model.predict(X)
        assert device.knobs == {"bias_v": 0.7}
        assert model.result_.provenance["configuration"]["reservoir"]["knobs"]["bias_v"]["value"] == 0.7
        with pytest.raises(ConfigurationError, match="an open reservoir is as it is"):
            model.set_params(reservoir__knobs__bias_v=0.1)


def test_after_a_fault_a_search_goes_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    X, y = recording()
    model = ReservoirModel({**CELL, "call": "chemical_cell:breaks"})
    monkeypatch.setattr(chemical_cell, "fails_at", chemical_cell.driven + 2 * STEPS)
    search = selection.GridSearchCV(model, {"readout__alpha": [1e-6, 1e-2, 1.0]}, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DeviceError, match=r"has failed \(.*no current at electrode 2"):
            search.fit(X, y)
    monkeypatch.setattr(chemical_cell, "fails_at", None)
    with pytest.raises(DeviceError, match=r"call close\(\)"):
        model.fit(X, y)
    model.close()
    assert model.fit(X, y).predict(X).shape == y.shape
    model.close()


def test_a_device_stays_in_its_process(model: ReservoirModel) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    X, y = recording()
    answers = model.fit(X, y).predict(X)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(X), answers)
    with pytest.raises(NotOpen, match="fit it again"):
        copied.export("m.rhw")
    copied.close()
    before = chemical_cell.prepared
    with pytest.raises(Exception) as raised:
        selection.cross_val_score(ReservoirModel(CELL), X, y, n_jobs=2, cv=2)
    assert "take n_jobs=1" in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"
    assert chemical_cell.prepared == before


def test_a_fit_leaves_nothing_behind() -> None:
    """Neither data nor files: a validation makes hundreds of models."""
    X, y = recording()
    model = ReservoirModel(ESN, washout=30)
    gc.disable()
    try:
        for _ in range(2):
            one = ReservoirModel(ESN, washout=30)
            one._device = model._shared()
            one.fit(X, y).predict(X)
            task, folder = weakref.ref(one.result_.task), one.result_.folder
            assert folder.is_dir()
            del one
            assert task() is None
            assert not folder.exists()
    finally:
        gc.enable()
        model.close()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda model, X, y: model.fit(X, None), "requires y to be passed"),
        (lambda model, X, y: model.fit(X, y[:-1]), "targets have 299 rows, inputs 300"),
        (lambda model, X, y: model.fit(X.T, y.T), "targets have 2 rows, inputs 1"),
        (lambda model, X, y: model.fit({"a": 1}, y), "dict is no series"),
        (lambda model, X, y: model.set_params(readout__alhpa=1).fit(X, y), "did you mean 'alpha'"),
        (lambda model, X, y: model.set_params(leak=1), "Invalid parameter 'leak'"),
        (lambda m, X, y: m.set_params(readout={"kind": "rls", "keep_learning": True}).fit(X, y), "stay as they are"),
        (lambda model, X, y: model.set_params(readout="linear").fit(X, y), "readout linear"),
        (lambda m, X, y: m.set_params(reservoir={**ESN, "vary": {"nodes": [5, 6]}}).fit(X, y), "is one model"),
        (lambda model, X, y: model.set_params(training={"continuous": True}).fit(X, y), "continuous"),
        (lambda model, X, y: model.fit(X, y).predict(np.hstack([X, X])), "X has 2 features"),
        (lambda model, X, y: model.fit(X, y).predict(X * np.nan), "finite"),
        (lambda model, X, y: model.fit(X, y).score(X, y[:-1]), "not as many steps"),
        (lambda model, X, y: model.predict(X), "call fit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_in_a_sentence(
    model: ReservoirModel, wrong: Callable[[ReservoirModel, Any, Any], Any], told: str
) -> None:
    with pytest.raises((ConfigurationError, ShapeError, NotOpen, ValueError), match=told):
        wrong(model, *recording())


@pytest.mark.parametrize(
    ("targets", "outputs", "found"),
    [
        ([0.1, 0.1, 0.1], [0.1, 0.1, 0.1], 0.0),
        ([0.1, 0.1, 0.1], [0.1, 0.1, 0.2], np.inf),
        ([0.0, 2.0], [0.0, 1.0], 0.5),
        ([], [], "no row is judged"),
        ([1.0, np.nan], [1.0, 1.0], "the target in row 1 is not a number"),
        ([1.0, 2.0], [np.inf, 1.0], "the output in row 0 is not a number"),
    ],
)
def test_what_is_not_judged_is_not_perfect(targets: list[float], outputs: list[float], found: float | str) -> None:
    columns = np.array(targets)[:, None], np.array(outputs)[:, None]
    if isinstance(found, str):
        with pytest.raises(ConfigurationError, match=found):
            of_numbers(*columns, ["y0"], [])
    else:
        metrics = of_numbers(*columns, ["y0"], [])
        assert (metrics["nmse"], metrics["r2"]) == (found, 1 - found)


@pytest.mark.parametrize("kind", ["pandas", "xarray"])
def test_columns_are_taken_by_their_names(model: ReservoirModel, kind: str) -> None:
    library = pytest.importorskip(kind)
    X, y = recording()
    X = np.hstack([X, np.cos(X)])

    def named(values: np.ndarray, names: list[str]) -> Any:
        if kind == "pandas":
            return library.DataFrame(values, columns=names)
        return library.DataArray(values, dims=("time", "channel"), coords={"channel": names})

    u, wanted = named(X, ["valve", "noise"]), named(y, ["flow", "pressure"])
    expected = model.fit(u, wanted).predict(X)
    turned = named(X[:, ::-1], ["noise", "valve"])
    np.testing.assert_array_equal(model.predict(turned), expected)
    assert model.score(turned, named(y[:, ::-1], ["pressure", "flow"])) == model.score(X, y)
    with pytest.raises(ConfigurationError, match="X has no column 'valve'"):
        model.predict(named(X, ["Valve", "noise"]))
    with pytest.raises(ConfigurationError, match="y has no column 'pressure'"):
        model.score(u, named(y, ["flow", "level"]))


@pytest.mark.parametrize(
    ("steps", "wrong", "told"),
    [
        (STEPS, lambda y: y[:, :1], "y has 1 outputs, and the model was trained with 2"),
        (STEPS, lambda y: y[:, 0], "y has 1 outputs"),
        (STEPS, lambda y: [y, y], "not as many steps"),
        (STEPS, lambda y: np.where(np.arange(STEPS)[:, None] == 200, np.nan, y), "y: series 0 holds NaN"),
        (STEPS, lambda y: y.astype(str), "y: series 0 holds NaN, infinity or text"),
        (STEPS, lambda y: None, "NoneType is no series"),
        (30, lambda y: y, "no row is judged: no series of X is longer than the washout of 30 steps"),
    ],
)
def test_a_score_has_the_targets_of_the_training(steps: int, wrong: Callable[[Any], Any], told: str) -> None:
    X, y = recording()
    with ReservoirModel(CELL, washout=30).fit(X, y) as model:
        driven = chemical_cell.driven
        with pytest.raises((ConfigurationError, ShapeError), match=told):
            model.score(X[:steps], wrong(y[:steps]))
        assert chemical_cell.driven == driven


@pytest.mark.parametrize("estimator", ["svm:SVR", "neighbors:KNeighborsRegressor"])
def test_estimators_that_no_file_keeps_answer_and_are_not_exported(estimator: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    X, y = recording()
    with ReservoirModel(ESN, {"kind": "sklearn", "estimator": f"sklearn.{estimator}"}, washout=20) as model:
        assert model.fit(X, y).score(X, y) > 0.5
        with pytest.raises(ConfigurationError, match="is no linear form"):
            model.export(tmp_path / "model.rhw")


@pytest.mark.parametrize("estimator", ["linear_model:RidgeCV", "linear_model:Lasso", "svm:LinearSVR"])
def test_linear_estimators_are_models(estimator: str) -> None:
    pytest.importorskip("sklearn")
    X, y = recording()
    with (
        warnings.catch_warnings(),
        ReservoirModel(ESN, {"kind": "sklearn", "estimator": f"sklearn.{estimator}"}) as one,
    ):
        warnings.simplefilter("ignore")
        assert one.fit(X, y).predict(X).shape == y.shape


@pytest.mark.parametrize("estimator", ["linear_model:LogisticRegression", "svm:LinearSVC"])
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifiers_are_models(estimator: str, classes: int) -> None:
    pytest.importorskip("sklearn")
    kinds = np.arange(12) % classes
    X = [np.sin(np.arange(60) + number)[:, None] + kind for number, kind in enumerate(kinds)]
    with ReservoirModel(ESN, {"kind": "sklearn", "estimator": f"sklearn.{estimator}"}) as one:
        assert one.fit(X, kinds).score(X, kinds) == 1
