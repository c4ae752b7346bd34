"""An estimator of scikit-learn as a readout. What is linear is kept as a linear form; nothing is pickled."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, Self

import numpy as np
from safetensors.numpy import save_file

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import read_tensors, write_tensors
from reservoir_hw.core.functions import import_function
from reservoir_hw.readout.linear.least_squares import FeatureScale, LinearForm
from reservoir_hw.readout.linear.training_chunks import Widths
from reservoir_hw.readout.own.gathered import GatheredReadout, settings_of

# Rows on which a linear form must answer as the estimator does, and how far it may be off.
_TRIED, _OFF = 1000, 1e-6
_FORM = "sklearn readout"


class SklearnReadout(GatheredReadout):
    """y = f(x) with x the states of one step, followed by the inputs with an input connection.

    `config` is a `SklearnConfig`.
    A regressor answers as it predicts. An estimator for one output is fitted to each of several. A classifier learns
    the class whose target is the largest, and answers with its probabilities, else with its decision function, else
    with 1 for the class that it chose; a task with one output has its values for classes. A linear classifier answers
    with its decision function, so that it stays linear.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._rows: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        self._fitted: Any = None
        self._form: LinearForm | None = None

    def estimator(self) -> Any:
        """The estimator, not fitted. Raises `ConfigurationError` where it cannot be made."""
        target, params = self.config.estimator, self.config.params
        make = import_function(target, "estimator", "class")
        try:
            found = make(**params)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"estimator: {target} cannot be made with {params}: {error}") from error
        if not (hasattr(found, "fit") and hasattr(found, "predict")):
            raise ConfigurationError(f"estimator: {target} is no estimator of scikit-learn: it has no fit and predict")
        return found

    # ---- learning

    def _gather(self, features: np.ndarray, targets: np.ndarray, *, begins: bool) -> None:
        known = ~np.isnan(targets).any(axis=2)
        self._rows.append(features[known].astype(np.float64))
        self._targets.append(targets[known].astype(np.float64))

    def solve(self) -> Self:
        """Fit the estimator; the states are forgotten then."""
        from sklearn.base import is_classifier

        features, targets = np.concatenate(self._rows), np.concatenate(self._targets)
        if not len(features):
            raise self._nothing_left()
        self._rows, self._targets, self._samples = [], [], len(features)
        estimator = self.estimator()
        wanted = targets
        if targets.shape[1] == 1:
            wanted = targets[:, 0]
        elif is_classifier(estimator):
            # Classes are numbers of outputs.
            wanted = targets.argmax(axis=1)
        else:
            from sklearn.multioutput import MultiOutputRegressor

            # Since scikit-learn 1.6; the others are fitted with older ones, too.
            from sklearn.utils import get_tags

            if not get_tags(estimator).target_tags.multi_output:
                estimator = MultiOutputRegressor(estimator)
        try:
            self._fitted = estimator.fit(features, wanted)
        except ValueError as error:
            raise ConfigurationError(f"estimator: {self.config.estimator} cannot be fitted: {error}") from error
        self._form = self._linear(features)
        return self

    def _linear(self, features: np.ndarray) -> LinearForm | None:
        """What the estimator computes as W x + b, if that is what it computes."""
        tried = features[:: -(-len(features) // _TRIED)]
        bias = self._answers(np.zeros((1, features.shape[1])))[0]
        weights = (self._answers(np.eye(features.shape[1])) - bias).T
        expected = self._answers(tried)
        if np.abs(tried @ weights.T + bias - expected).max() > _OFF * max(np.abs(expected).max(), 1e-30):
            return None
        return LinearForm(weights, bias, self.widths.nodes, FeatureScale.of([features]))

    def _answers(self, features: np.ndarray) -> np.ndarray:
        """Outputs (rows, outputs) of the estimator for rows of features."""
        from sklearn.base import is_classifier

        fitted, outputs = self._fitted, self.widths.outputs
        if not is_classifier(fitted) or outputs == 1:
            return np.asarray(fitted.predict(features), np.float64).reshape(len(features), outputs)
        classes = np.asarray(fitted.classes_, int)
        if hasattr(fitted, "coef_") and hasattr(fitted, "decision_function"):
            scores = fitted.decision_function(features)
        elif hasattr(fitted, "predict_proba"):
            scores = fitted.predict_proba(features)
        else:
            scores = (fitted.predict(features)[:, None] == classes).astype(np.float64)
        if scores.ndim == 1:
            # Of two classes: how much it is the second.
            scores = np.stack([-scores, scores], axis=1)
        # A class that was not in the training is never chosen.
        found = np.full((len(features), outputs), scores.min() - 1.0)
        found[:, classes] = scores
        return found

    # ---- using

    @property
    def report_(self) -> dict[str, Any]:
        """What was fitted, to how many samples, and whether it is linear."""
        return {
            "kind": "sklearn",
            "estimator": self.config.estimator,
            "samples": self._samples,
            "linear": self._form is not None,
        }

    def linear_form(self) -> LinearForm:
        """Weights and bias of the features as they are. Raises `ConfigurationError` for what is not linear."""
        if self._form is None:
            raise ConfigurationError(
                f"{self.config.estimator} is no linear form: it cannot be exported; take a linear estimator, or "
                "readout torch"
            )
        return self._form

    def predict(self, states: Any, inputs: Any = None) -> np.ndarray:
        """Outputs (..., outputs) for states (..., nodes), computed in float64, in the precision of the states."""
        given = self._features(states, inputs)
        rows = given.reshape(-1, given.shape[-1]).astype(np.float64)
        form = self._form
        found = self._answers(rows) if form is None else rows @ form.weights.T + form.bias
        dtype = np.float32 if given.dtype == np.float32 else np.float64
        return found.reshape(*given.shape[:-1], self.widths.outputs).astype(dtype)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a linear form with its settings; of what is not linear the settings alone."""
        form = self._form
        facts = {
            "settings": self.config.model_dump(mode="json"),
            "report": self.report_,
            **asdict(self.widths),
            "repetitions": self.repetitions_,
        }
        write_tensors(path, save_file, {} if form is None else form.arrays(), facts, _FORM)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The readout of a file. Raises `ConfigurationError` for one that is not linear: its fit is in no file."""
        arrays, facts = read_tensors(path, "numpy", _FORM)
        readout = cls(settings_of(facts["settings"]))
        if not arrays:
            raise ConfigurationError(
                f"{os.fspath(path)}: {readout.config.estimator} is no linear form: it cannot be exported, and its fit "
                "was not kept, as that would take a pickle; its outputs for the test are in the run folder. Run the "
                "experiment again, with a linear estimator or readout torch for an export"
            )
        readout.known_widths = Widths(facts["nodes"], facts["inputs"], facts["outputs"])
        readout._form = LinearForm.of_arrays(arrays, facts["nodes"])
        readout._samples, readout.repetitions_ = facts["report"]["samples"], facts["repetitions"]
        return readout
