"""An experiment on one's own data as a model: `fit`, `predict`, `score`, as scikit-learn has them."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from reservoir_hw.core import arrays, registry
from reservoir_hw.core.configuration import Config, Document
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceError, DeviceFault, NotOpen, ShapeError
from reservoir_hw.core.given import give, give_single, give_targets
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, reservoir_config
from reservoir_hw.core.series_format import SeriesFormat, as_given, is_array, series_of, with_columns
from reservoir_hw.experiment.configuration.experiment import TrainingConfig
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.deploy.job import Export
from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.learning import predict_into
from reservoir_hw.experiment.run.open_device import SharedDevice, turn
from reservoir_hw.experiment.run.result import Result
from reservoir_hw.experiment.states.drive import driven
from reservoir_hw.experiment.states.plan import plan
from reservoir_hw.experiment.states.watch import StateWatch, about_counters
from reservoir_hw.readout.configuration import Readout, StateReadoutConfig
from reservoir_hw.tasks.data.task import of_numbers
from reservoir_hw.tasks.task import Evaluation, OutputScale, Split, Task

ReservoirLike = Reservoir | ReservoirConfig | Mapping[str, Any] | str | os.PathLike[str]

_OTHERS = (
    "readout {}: ReservoirModel has readouts that learn in one pass over states and then stay as they are; run the "
    "others as an Experiment, and take the model from its run folder"
)

# One drive at a time: a device has one user.
_DRIVING = threading.RLock()


class ReservoirModel:
    """A reservoir with a readout that learns from one's own series; follows scikit-learn as far as that holds for them.

        model = ReservoirModel("lab.yaml", readout="ridge", washout=100).fit(X, y)
        model.predict(X2), model.score(X2, y2), model.export("model.rhw")

    Arrays (time, channels) or (time,) are one series; (batch, time, channels), or a list, are several. Numpy, torch,
    pandas and xarray are taken, and what `predict` returns is of the same kind. Each series begins at rest. Numbers are
    scaled by the statistics of the training (`scale`), and answers are in the units of `y`.

    The reservoir of a file, a mapping or a configuration is opened by the first `fit`. It stays open for this model and
    its clones until `close`, the end of a `with` block, or that of the program. An open one is shared and left open.

    Parameters
    ----------
    reservoir
        The path of a reservoir file, a mapping with `kind`, a configuration, or an open reservoir.
    readout
        A kind of readout that learns in one pass over states, a mapping with `kind` and its keys, or a configuration.
    washout
        Leading steps of each series that are neither learned from nor judged. Outputs of these steps are returned.
    scale, decide, training
        As `task.scale`, `task.decide` and `training` of an experiment file; None takes the defaults.
    folder
        Where `fit` makes its run folder; None: a temporary one, which lives as long as the model.

    `set_params` and searches reach keys of the sections: `readout__alpha`, `reservoir__leak_rate`.

    After `fit`, `result_` is the `Result` of the experiment, `classes_` are the labels of a classifier.
    """

    _device: SharedDevice | None = None
    _trained: _Trained | None = None
    result_: Result

    def __init__(
        self,
        reservoir: ReservoirLike,
        readout: str | Mapping[str, Any] | Config = "ridge",
        *,
        washout: int = 0,
        scale: Mapping[str, Any] | None = None,
        decide: str = "mean",
        training: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.reservoir = reservoir
        self.readout = readout
        self.washout = washout
        self.scale = scale
        self.decide = decide
        self.training = training
        self.folder = folder

    def fit(self, X: Any, y: Any) -> Self:
        """Drive the reservoir with X and train the readout to say y: an experiment without a test (`result_`).

        y are series as long as those of X, or of several series one number or label for each. Labels, texts or whole
        numbers, make a classifier.

        Raises `ConfigurationError` and `ShapeError` for what does not fit together, before the device is opened, and
        the device's own errors. After one of a device no clone drives it before `close`.
        """
        if y is None:
            raise ConfigurationError("ReservoirModel requires y to be passed, but the target y is None")
        inputs = give(series_of(X), "X")
        wanted: Any = y if hasattr(y, "ndim") or isinstance(y, list | tuple) else np.asarray(y)
        parts = wanted if isinstance(y, list | tuple) and is_array(wanted) else [wanted]
        flat = all(np.ndim(arrays.as_numpy(one)) == 1 for one in parts)
        if flat and len(inputs.series) == 1 and hasattr(wanted, "to_frame"):
            wanted = wanted.to_frame("y0" if wanted.name is None else wanted.name)
        targets = give_targets(inputs, wanted, "y")
        if not inputs.series[0].shape[1]:
            raise ShapeError(
                f"X has 0 feature(s) (shape={inputs.series[0].shape}) while a minimum of 1 is required here"
            )
        self._trained = None
        for name in ("result_", "feature_names_in_", "classes_"):
            vars(self).pop(name, None)
        readout = _section("readout", self.readout)
        if not issubclass(registry.find("readouts", str(readout.get("kind"))).load(), StateReadoutConfig):
            raise ConfigurationError(_OTHERS.format(readout["kind"]))
        task = {"kind": "data", "inputs": inputs.name, "targets": targets.name, "test": "none", "decide": self.decide}
        with self._drive() as device:
            document = {
                "task": task | ({} if self.scale is None else {"scale": self.scale}),
                "reservoir": _section("reservoir", self.reservoir),
                "readout": {**readout, "washout": self.washout} if self.washout else readout,
                "training": dict(self.training or {}),
                "run": {"folder": os.fspath(self.folder or _temporary_folder(self)), "name": "model", "states": None},
            }
            experiment = Experiment(document, device=device)
            config = experiment.config
            if cast(StateReadoutConfig, config.readout).keeps_learning:
                raise ConfigurationError(_OTHERS.format(readout["kind"]))
            if len(experiment.points) > 1:
                raise ConfigurationError(
                    "vary: a ReservoirModel is one model: search with GridSearchCV, or an Experiment"
                )
            if config.training.continuous:
                raise ConfigurationError("training.continuous: ReservoirModel answers each series from rest")
            result = experiment.run(report=False)
        for warning in result.warnings:
            warnings.warn(warning, stacklevel=2)
        self.result_ = result
        (point,), task, settings = experiment.points, result.task, cast(StateReadoutConfig, config.readout)
        found = task.series
        assert found is not None
        labels = {str(label): label for label in targets.series[0].tolist()} if targets.single else {}
        self._trained = _Trained(
            reservoir=config.reservoir.for_inputs(settings.channels(task)),
            by_way_of=dict(point.by_way_of),
            training=config.training,
            chunk_steps=config.run.chunk_steps,
            washout=getattr(settings, "washout", 0),
            # As it is here: of some, such as an estimator that is not linear, no file holds the fit.
            readout=result.readout,
            format=found,
            flat=flat or targets.single,
            single=targets.single,
            names=targets.names,
            classes=np.array([labels[name] for name in found.classes]) if found.classes else None,
        )
        self.n_features_in_ = inputs.series[0].shape[1]
        if inputs.names:
            self.feature_names_in_ = np.array(inputs.names, dtype=object)
        if self._trained.classes is not None:
            self.classes_ = self._trained.classes
        return self

    def predict(self, X: Any) -> Any:
        """Outputs (time, outputs) of each series, from rest, as X was given; (time,), or a Series, where y was (time,).

        A classifier answers (series,) labels, and a model of one number for each series (series,) numbers. Columns of a
        DataFrame are taken by their names.
        """
        trained, X = self._fitted("predict"), series_of(X)
        answers = self._answers(self._series(X))
        if trained.single:
            return self._decided(answers)
        answers = [trained.format.user_outputs(one) for one in answers]
        names = [channel.name for channel in trained.format.outputs]
        answers = [one[:, 0] if trained.flat else one for one in answers]
        if isinstance(X, list | tuple):
            return [as_given(answer, one, names) for answer, one in zip(answers, X, strict=True)]
        return as_given(answers[0], X, names) if X.ndim < 3 else arrays.like(np.stack(answers), X)

    def score(self, X: Any, y: Any) -> float:
        """The accuracy of a classifier; else r2 behind the washout, the mean over the outputs.

        y are as in the training, and columns are taken by their names. Raises `ShapeError` and `ConfigurationError` for
        others, before anything is driven.
        """
        trained = self._fitted("score")
        given = self._series(series_of(X))
        if trained.single:
            (right,) = give_single(series_of(y), "y").series
            if len(right) != len(given):
                raise ShapeError(f"y are {len(right)} values, and X {len(given)} series: one for each")
            if trained.classes is None:
                _check_numbers([right[:, None]], "y")
                return of_numbers(right[:, None], self._decided(self._answers(given))[:, None], ["y0"], [])["r2"]
            if unknown := set(right.tolist()) - set(trained.classes.tolist()):
                raise ConfigurationError(
                    f"the class {min(unknown)!r} was not in the training: split so that it is (StratifiedKFold)"
                )
            return float(np.mean(self._decided(self._answers(given)) == right))
        wanted = give(with_columns(series_of(y), trained.names, "y"), "y").series
        if [len(one) for one in wanted] != [len(one) for one in given]:
            raise ShapeError("y are not as many steps as X, series for series")
        outputs, first = len(trained.format.outputs), trained.washout
        if wrong := {one.shape[1] for one in wanted} - {outputs}:
            raise ShapeError(f"y has {min(wrong)} outputs, and the model was trained with {outputs}")
        _check_numbers(wanted, "y")
        if all(len(one) <= first for one in given):
            raise ShapeError(f"no row is judged: no series of X is longer than the washout of {first} steps")
        found = np.concatenate([trained.format.user_outputs(one[first:]) for one in self._answers(given)])
        return of_numbers(np.concatenate([one[first:] for one in wanted]), found, [], [])["r2"]

    def export(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Export:
        """The model as a bundle for the edge; path and options are those of `export_run`. The device is driven."""
        self._fitted("export")
        if not hasattr(self, "result_"):
            raise NotOpen("this model was copied from another process, without the folder of its run: fit it again")
        if isinstance(self.reservoir, str | os.PathLike) and not options.get("offline"):
            options.setdefault("reservoir", self.reservoir)
        with self._drive() as device:
            return export_run(self.result_.folder, cast(Any, path), device=device, **options)

    def close(self) -> None:
        """Close what `fit` has opened, for all clones. The next drive opens it again, also after a fault."""
        with _DRIVING:
            if self._device is not None:
                self._device.fault = ""
                self._device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what scikit-learn asks

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor by name; `deep`, keys of mappings too (`readout__alpha`)."""
        found = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        mappings = {name: value for name, value in found.items() if deep and isinstance(value, Mapping)}
        return found | {f"{name}__{key}": item for name, value in mappings.items() for key, item in value.items()}

    def set_params(self, **params: Any) -> Self:
        """Set arguments, and keys of sections: `readout__alpha=1e-3`, `reservoir__knobs__bias=0.4`."""
        known = self.get_params(deep=False)
        for key in sorted(params, key=lambda key: "__" in key):
            name, _, inner = key.partition("__")
            if name not in known:
                raise ConfigurationError(f"Invalid parameter {name!r} for ReservoirModel: it has {', '.join(known)}")
            value = params[key]
            if inner:
                if name == "reservoir" and isinstance(self.reservoir, Reservoir):
                    raise ConfigurationError(f"{key}: an open reservoir is as it is: name its file in its place")
                document = Document({name: _copied(_section(name, getattr(self, name)))})
                plain = value.tolist() if hasattr(value, "tolist") else value
                document.set(f"{name}.{inner.replace('__', '.')}", plain, key)
                value = document.data[name]
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> Self:
        # Nothing changes a mapping, and what is in it may be methods of a lab's own object.
        cloned = type(self)(**self.get_params(deep=False))
        cloned._device = self._shared()
        return cloned

    def __sklearn_is_fitted__(self) -> bool:
        return self._trained is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=True, multi_output=True),
            regressor_tags=RegressorTags(poor_score=True),
            input_tags=InputTags(three_d_array=True),
        )

    def __repr__(self) -> str:
        given = self.get_params(deep=False).items()
        return f"ReservoirModel({', '.join(f'{name}={value!r}' for name, value in given)})"

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which can have a simulation of its own."""
        if not self._is_computed:
            raise ConfigurationError(
                "a ReservoirModel on a device, or an open reservoir, stays in its process: take n_jobs=1"
            )
        return {name: value for name, value in vars(self).items() if name not in ("_device", "result_", "_remove")}

    # ---- how

    @property
    def _is_computed(self) -> bool:
        return not isinstance(self.reservoir, Reservoir) and _configured(self.reservoir).is_computed

    def _shared(self) -> SharedDevice:
        lent = self.reservoir if isinstance(self.reservoir, Reservoir) else None
        if self._device is None or self._device.lent is not lent:
            self._device = SharedDevice(lent)
        return self._device

    @contextmanager
    def _drive(self) -> Iterator[SharedDevice]:
        """The device for a drive, after which a fault is remembered: a search would choose among the other fits."""
        with _DRIVING:
            device = self._shared()
            if device.fault:
                raise DeviceFault(
                    f"the device has failed ({device.fault}), so that this fit would not be like those before: look at "
                    "the device, call close() of the model, and begin the search again"
                )
            try:
                yield device
            except DeviceBusy:
                raise
            except DeviceError as error:
                if not self._is_computed:
                    device.fault = f"{type(error).__name__}: {error}"
                raise

    def _fitted(self, method: str) -> _Trained:
        if self._trained is None:
            known = sys.modules.get("sklearn.exceptions")
            raise (known.NotFittedError if known else NotOpen)(f"call fit of this ReservoirModel before {method}")
        return self._trained

    def _series(self, X: Any) -> list[np.ndarray]:
        """Series (time, channels) that the model can answer. Raises `ShapeError` and `ConfigurationError`."""
        trained = self._fitted("predict")
        given = give(with_columns(X, getattr(self, "feature_names_in_", ()), "X"), "X").series
        for number, one in enumerate(given):
            if one.shape[1] != self.n_features_in_:
                raise ShapeError(
                    f"X has {one.shape[1]} features, but ReservoirModel is expecting {self.n_features_in_} features as "
                    "input"
                )
            if len(one) <= (trained.washout if trained.single else 0):
                raise ShapeError(f"X: series {number} has {len(one)} steps, and the washout takes {trained.washout}")
        _check_numbers(given, "X")
        return given

    def _decided(self, answers: Sequence[np.ndarray]) -> np.ndarray:
        """The label, or the number, of each series: (series,)."""
        trained, last = self._fitted("predict"), self.decide == "last"
        said = np.stack([one[-1] if last else one.mean(axis=0, dtype=np.float64) for one in answers])
        if trained.classes is not None:
            return trained.classes[said.argmax(axis=1)]
        return trained.format.user_outputs(said)[:, 0]

    def _answers(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each series the outputs of the model, (time, outputs); a classifier's are those behind the washout."""
        trained = self._fitted("predict")
        outputs = len(trained.format.classes or trained.format.outputs)
        asked, training = _Asked([trained.format.model_inputs(one) for one in given], outputs), trained.training
        with self._drive() as device:
            reservoir = device.opened(trained.reservoir)
            if device.lent is None and reservoir.knobs != trained.reservoir.knob_values:
                turn(reservoir, trained.reservoir, trained.by_way_of)
            most, batch = trained.chunk_steps, reservoir.spec.max_batch
            bursts = plan(asked, training, chunk_steps=most, max_batch=batch, splits=("test",))
            states = driven(reservoir, bursts, lambda steps: None, repetitions=training.repetitions, native=True)
            watch = StateWatch(reservoir.spec)
            for chunk, answer in watch.passing(states):
                predict_into(trained.readout, chunk, answer, asked.answers)
            told = about_counters(reservoir.counters, reservoir.spec) + watch.warnings()
        for warning in told:
            warnings.warn(warning, stacklevel=3)
        first = trained.washout if trained.single else 0
        return [answer[first : len(one)] for answer, one in zip(asked.answers, given, strict=True)]


class _Asked(Task):
    """Series that are answered and not judged."""

    def __init__(self, series: Sequence[np.ndarray], outputs: int) -> None:
        lengths = np.array([len(one) for one in series])
        inputs = np.zeros((len(series), lengths.max(), series[0].shape[1]), np.float32)
        for row, one in enumerate(series):
            inputs[row, : len(one)] = one
        self.answers = np.zeros((*inputs.shape[:2], outputs), np.float32)
        self.train = self.test = Split(inputs, self.answers, None, lengths)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Nobody knows what is right."""
        return Evaluation({})


@dataclass(frozen=True)
class _Trained:
    """What a fit leaves for answers. `flat` says that y had one axis, `single` one value for each series.

    `names` are those of the columns of y, where it had any.
    """

    reservoir: ReservoirConfig
    by_way_of: Mapping[str, tuple[float, float]]
    training: TrainingConfig
    chunk_steps: int
    washout: int
    readout: Readout
    format: SeriesFormat
    flat: bool
    single: bool
    names: tuple[str, ...]
    classes: np.ndarray | None


def _configured(reservoir: ReservoirLike) -> ReservoirConfig:
    if not isinstance(reservoir, Reservoir):
        return reservoir_config(cast(Any, reservoir))
    if reservoir.configuration is None:
        raise ConfigurationError(
            "this reservoir was not built from a configuration, so that no run could say what it was: open it by "
            "open_reservoir (kind: python takes functions of yours)"
        )
    return reservoir.configuration


def _section(name: str, value: Any) -> dict[str, Any]:
    """A section of an experiment, for whatever stands for it."""
    if name == "reservoir" and not isinstance(value, Mapping):
        section = _configured(value).model_dump(mode="json", serialize_as_any=True)
        if isinstance(value, Reservoir):
            # As it is now: whoever has it open may have turned it.
            for knob, now in value.knobs.items():
                given = section["knobs"].get(knob)
                section["knobs"][knob] = {**given, "value": now} if isinstance(given, dict) else now
        return section
    if isinstance(value, str):
        return {"kind": value}
    return value.model_dump(mode="json", serialize_as_any=True) if isinstance(value, Config) else dict(value or {})


def _check_numbers(series: Sequence[np.ndarray], what: str) -> None:
    for number, one in enumerate(series):
        if one.dtype.kind not in "fiub" or arrays.not_finite(one, arrays.NO_NUMBER).any():
            raise ShapeError(f"{what}: series {number} holds NaN, infinity or text: give finite numbers")


def _copied(value: Any) -> Any:
    """Mappings within mappings; what else is in them stays the same object."""
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _temporary_folder(model: ReservoirModel) -> str:
    """A folder that is removed with the model, or when it is fitted again."""
    if (before := vars(model).get("_remove")) is not None:
        before()
    path = tempfile.mkdtemp(prefix="reservoir-model-")
    vars(model)["_remove"] = weakref.finalize(model, shutil.rmtree, path, ignore_errors=True)
    return path
