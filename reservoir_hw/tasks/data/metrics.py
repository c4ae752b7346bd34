"""How answers to a user's own data are judged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.functions import import_function, without_digest
from reservoir_hw.tasks import classification
from reservoir_hw.tasks.task import Evaluation


def of_numbers(
    targets: np.ndarray, outputs: np.ndarray, names: Sequence[str], further: Sequence[str]
) -> dict[str, float]:
    """`nrmse`, `nmse`, `mae` and `r2` of targets and outputs, both (rows, outputs), in the user's units.

    nmse is the mean squared error over the variance of the targets, nrmse its root, mae the mean absolute error, and
    r2 = 1 - nmse. Of several outputs the mean stands under the bare name, and each under `nmse/NAME`. `further` are
    functions of (targets, outputs). Against targets that are all the same any error is infinite, and none is 0.

    Raises `ConfigurationError` where there is no row, or a number is NaN or infinite.
    """
    if not len(targets):
        raise ConfigurationError("no row is judged")
    for what, values in (("target", targets), ("output", outputs)):
        for row in np.flatnonzero(~np.isfinite(values).all(axis=1))[:1]:
            raise ConfigurationError(f"the {what} in row {row} is not a number: {values[row].tolist()}")
    error = np.mean((outputs - targets) ** 2, axis=0)
    # The mean of equal numbers may be rounded, and then their variance is not 0.
    spread = np.where(np.ptp(targets, axis=0) > 0, targets.var(axis=0), 0.0)
    nmse = np.divide(error, spread, out=np.where(error > 0, np.inf, 0.0), where=spread > 0)
    found = {"nrmse": np.sqrt(nmse), "nmse": nmse, "mae": np.abs(outputs - targets).mean(axis=0), "r2": 1 - nmse}
    metrics = {name: float(values.mean()) for name, values in found.items()}
    if len(names) > 1:
        for name, values in found.items():
            metrics |= {f"{name}/{output}": float(value) for output, value in zip(names, values, strict=True)}
    single = targets.shape[1] == 1
    return metrics | own(further, targets[:, 0] if single else targets, outputs[:, 0] if single else outputs)


def of_classes(right: np.ndarray, answers: np.ndarray, classes: Sequence[str], further: Sequence[str]) -> Evaluation:
    """`accuracy`, `balanced_accuracy` (mean over the classes), `f1` (mean over the classes), and `error_rate`.

    `right` and `answers` are (series,), numbers of the classes. A class that is neither asked for nor answered does not
    count. The error rate has its 95 % interval, and `arrays` are those of `classification.counted_classes`.
    """
    counted = classification.counted_classes(right, answers, len(classes))
    counts = counted.arrays["confusion"]
    hits, asked, given = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    there, seen = asked > 0, asked + given > 0
    metrics = {
        "accuracy": 1 - counted.metrics["error_rate"],
        "balanced_accuracy": float(np.mean(hits[there] / asked[there])),
        "f1": float(np.mean(2 * hits[seen] / (asked + given)[seen])),
        **counted.metrics,
    }
    names = np.array(classes)
    return Evaluation(metrics | own(further, names[right], names[answers]), counted.arrays)


def name_of(function: str) -> str:
    """What a user's metric is called: as its function."""
    return without_digest(function).partition(":")[2]


def own(functions: Sequence[str], targets: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
    """The metrics that a user names, each under the name of its function.

    Raises `ConfigurationError` for one that fails, or gives no finite number.
    """
    found = {}
    for target in functions:
        try:
            value = float(import_function(target, "task.metrics", "metric")(targets, outputs))
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(f"task.metrics: {target} failed: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise ConfigurationError(f"task.metrics: {target} gave {value}, which is no measure of an error")
        found[name_of(target)] = value
    return found
