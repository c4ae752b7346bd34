"""Tong et al. 2007, section 4.1: how close outputs come to what the grammar allows."""

from __future__ import annotations

import numpy as np

from reservoir_hw.tasks.elman_grammar.grammar import CLASS_NAMES, CLASS_SIZE, CLASS_START, DISTANCES
from reservoir_hw.tasks.task import Evaluation, OutputScale

SHIFT = 0.5
"""What the paper subtracts from inputs and targets (section 3.2)."""

ROC_POINTS = 500

# A probability below this is taken for it, so that one impossible guess does not make the score infinite.
_FLOOR = {"scores": 1e-4, "probabilities": 1e-12, "activations": 1e-12}

# Means of outputs closer than this differ by rounding only.
_TIE = 1e-12

# Both numbers of the common nouns are one class of the paper: they are the first two of ours.
_ROC_CLASSES = ("common", *CLASS_NAMES[2:])
_ROC_START = np.array([0, *CLASS_START[2:]])
_ROC_SIZE = np.array([CLASS_SIZE[:2].sum(), *CLASS_SIZE[2:]])

# Table 2 averages the AUC of proper and common nouns, and of both numbers of a kind of verb.
_AUC_GROUPS = {
    "nouns": ("common", "proper"),
    "transitive": ("transitive_singular", "transitive_plural"),
    "optional": ("optional_singular", "optional_plural"),
    "intransitive": ("intransitive_singular", "intransitive_plural"),
    "who": ("who",),
    "stop": ("stop",),
}


def _verbs(number: str) -> slice:
    first = CLASS_NAMES.index(f"transitive_{number}")
    return slice(CLASS_START[first], CLASS_START[first + 3])


_PLURAL, _SINGULAR = _verbs("plural"), _verbs("singular")


def grammar_evaluation(
    outputs: np.ndarray,
    probabilities: np.ndarray,
    following: np.ndarray,
    distances: np.ndarray,
    scale: OutputScale,
) -> Evaluation:
    """Every measure of section 4.1.

    `outputs` (time, 24) are judged by the grammar's `probabilities` (time, 24) of the next word.
    `following` (time,) is the word that did follow, `distances` (time,) its distance from its noun if
    it is a verb, else 0. `ElmanGrammar` describes the results.
    """
    level = as_activation(outputs, scale)
    normalised = outputs if scale == "probabilities" else z_scores(outputs)
    possible = probabilities > 0
    metrics = {
        "cosine": float(_cosine(level, probabilities).mean()),
        "max_prediction": float(possible[np.arange(len(outputs)), normalised.argmax(axis=1)].mean()),
    }
    class_scores = np.add.reduceat(normalised, _ROC_START, axis=1) / _ROC_SIZE
    class_possible = np.logical_or.reduceat(possible, _ROC_START, axis=1)
    metrics["auc"] = auc(class_scores.ravel(), class_possible.ravel())
    for group, members in _AUC_GROUPS.items():
        columns = [_ROC_CLASSES.index(member) for member in members]
        metrics[f"auc/{group}"] = float(
            np.mean([auc(class_scores[:, column], class_possible[:, column]) for column in columns])
        )
    metrics = {name: value for name, value in metrics.items() if np.isfinite(value)}
    false_alarm, hit = roc(class_scores.ravel(), class_possible.ravel())
    verbs, errors = _agreement(outputs, following, distances)
    if verbs.sum():
        metrics["agreement_error"] = float(errors.sum() / verbs.sum())
        metrics["agreement"] = 1 - metrics["agreement_error"]
    for distance, count, wrong in zip(DISTANCES, verbs, errors, strict=True):
        if count:
            metrics[f"agreement_error/{distance}"] = float(wrong / count)
    arrays = {
        "roc/false_alarm": false_alarm,
        "roc/hit": hit,
        "verbs/distance": np.array(DISTANCES),
        "verbs/count": verbs,
        "verbs/errors": errors,
    }
    return Evaluation(metrics, arrays)


def corpus_evaluation(outputs: np.ndarray, following: np.ndarray, scale: OutputScale) -> Evaluation:
    """How well `outputs` (time, vocabulary) predict the words `following` (time,).

    Cross-entropy in bits per word and its exponential, perplexity, of the outputs as probabilities:
    clipped to at least 1e-4 (scores) or 1e-12 (probabilities) and divided by their sum. `accuracy` is
    the share of steps whose largest output is the word that follows.
    """
    level = np.maximum(as_activation(outputs, scale), _FLOOR[scale])
    steps = np.arange(len(following))
    probability = level[steps, following] / level.sum(axis=1)
    bits = float(-np.log2(probability).mean())
    accuracy = float((outputs.argmax(axis=1) == following).mean())
    return Evaluation({"cross_entropy_bits": bits, "perplexity": 2.0**bits, "accuracy": accuracy})


def as_activation(outputs: np.ndarray, scale: OutputScale) -> np.ndarray:
    """Outputs on the scale of probabilities: unshifted and not below 0 (section 4, on Fig. 2)."""
    return np.maximum(outputs + SHIFT, 0) if scale == "scores" else outputs


def z_scores(outputs: np.ndarray) -> np.ndarray:
    """Each unit of `outputs` (time, units) with zero mean and unit deviation over time; 0 if constant."""
    deviation = outputs.std(axis=0)
    return (outputs - outputs.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve of `scores` (n,) for `positive` (n,) against the rest; ties count half.

    NaN where one of the two sides is empty. It is the Mann-Whitney statistic from ranks.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    above = rank[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def roc(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False-alarm and hit rates as the threshold falls, from (0, 0) to (1, 1), at most 500 points."""
    values, place = np.unique(-scores, return_inverse=True)
    hits = np.cumsum(np.bincount(place, positive, len(values))) / max(positive.sum(), 1)
    alarms = np.cumsum(np.bincount(place, ~positive, len(values))) / max((~positive).sum(), 1)
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), ROC_POINTS - 1)).round().astype(int))
    return np.append(0.0, alarms[chosen]), np.append(0.0, hits[chosen])


def _cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.einsum("tw,tw->t", x, y) / np.where(norms > 0, norms, 1)


def _agreement(outputs: np.ndarray, following: np.ndarray, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Verbs and errors by distance (7,). Equal means are half an error.

    Equal counts are common in the n-gram models. The paper's strict comparison makes them errors on paper
    and leaves them to rounding in floating point; half an error is what guessing costs.
    """
    at = np.flatnonzero(distances)
    is_plural = following[at] < _PLURAL.stop
    lead = outputs[at, _PLURAL].mean(axis=1) - outputs[at, _SINGULAR].mean(axis=1)
    lead = np.where(is_plural, lead, -lead)
    error = np.where(np.abs(lead) <= _TIE, 0.5, lead < 0)
    of_distance = distances[at][:, np.newaxis] == DISTANCES
    return of_distance.sum(axis=0), error @ of_distance
