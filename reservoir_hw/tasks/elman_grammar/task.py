"""Next-word prediction on Elman's grammar (Tong, Bickett, Christiansen and Cottrell 2007)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tokenizer import Corpus, Tokenizer, WordTokenizer
from reservoir_hw.tasks.elman_grammar import report
from reservoir_hw.tasks.elman_grammar.grammar import (
    CLASS_NAMES,
    CLASS_SIZE,
    CLASS_START,
    DISTANCES,
    LONGEST,
    VOCABULARY,
    Sentences,
    Words,
    conditioned,
    divide,
    draw,
    language,
    numbered,
    recognised,
    sentences_of,
)
from reservoir_hw.tasks.task import (
    Evaluation,
    Figures,
    OutputScale,
    Row,
    Split,
    Table,
    Task,
    TaskConfig,
    Tokens,
    checked_outputs,
    cross_entropy_of,
)

PROBE = ("boy", "who", "walks", "sees", "cats", ".")
"""The sentence of Fig. 2. It follows the test sentences, is in no training set, and enters no metric."""

_LARGEST = 2**28

SHIFT = 0.5
"""What the paper subtracts from inputs and targets (section 3.2)."""

ROC_POINTS = 500

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


class CorpusConfig(Config):
    """Sentences of your own, divided by you."""

    train: str = Field(description="a text file with one sentence per line")
    test: str = Field(description="another one, for the test")


class ElmanGrammarConfig(TaskConfig):
    """Next-word prediction in Elman's grammar (Tong et al. 2007), or in a corpus of your own."""

    kind: Literal["elman_grammar"]
    dataset: Annotated[int, Field(ge=0, le=4)] = Field(default=0, description="which of the five sets")
    seed: NonNegativeInt = 2007
    sentences: Annotated[int, Field(ge=20)] = Field(default=10_000, description="of which every tenth is for the test")
    complex_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.75, description="share of sentences with a relative clause"
    )
    corpus: str | CorpusConfig | None = Field(
        default=None,
        description="a text file with one sentence per line instead of generated sentences, or `train` and `test`",
    )

    def build(self) -> ElmanGrammar:
        """An `ElmanGrammar` with these settings."""
        return ElmanGrammar(self)


class ElmanGrammar(Task):
    """Say which words can come next in sentences with agreement and relative clauses.

    Words are one-hot, shifted by -0.5 like the targets, which are the words that follow (section 3.2);
    train and test are one long sequence of sentences each, (1, time, 24). The last word of a sequence
    has no successor, so it is a target but never an input.

    `dataset` (0 to 4) and `seed` choose one of the paper's five sets of `sentences` sentences, of which
    `complex_share` have a relative clause. A tenth are test sentences, and no test sentence occurs in
    training; `grammar.draw` says how. The same arguments give the same data on every machine.

    `evaluate` returns these metrics of section 4.1:

    - `cosine` between outputs and the grammar's exact probabilities, mean over time. Scores first get
      0.5 added and negative values set to 0. The paper says so of Fig. 2, "before comparing them to the
      targets", and is silent on the cosine itself; without the 0.5 a cosine with probabilities would be
      near zero or negative.
    - `max_prediction`, the rate at which the largest output is a possible word.
    - `auc` of the ten word classes together, possible against impossible, and `auc/nouns`,
      `auc/transitive`, `auc/optional`, `auc/intransitive`, `auc/who`, `auc/stop` averaged as in Table 2.
    - `agreement`, the rate at which, where a verb follows, the verbs of its number have a higher mean
      output than those of the other number, `agreement_error` = 1 - `agreement`, and
      `agreement_error/1` ... `/9` by the distance in words between verb and noun (Table 4).

    A small test may hold no verb at a distance, or a class that is never possible; what cannot be judged
    is left out. Scores are z-scored per unit over the test for `max_prediction` and `auc`; probabilities
    are not (section 4.1; the paper's logistic outputs are).

    Agreement takes the outputs as they are. The paper does not say, but the errors of an ESN of 50 nodes
    at distances 2 and 3 (0.02 and 0.05 over ten sets) come closer to its Table 4 (0.00 and 0.02) than
    with z-scores (0.03 and 0.07); larger ones do not tell the two apart. Where both means are equal, as
    with equal counts of an n-gram model, half an error is counted.

    With `corpus`, a file with one sentence per line, the words come from there (`grammar.divide` says how it is
    divided), or from the files `train` and `test`; `sentences` and `complex_share` do not apply. The vocabulary is
    every word of the files in alphabetical order. The metrics are `cross_entropy_bits` per word, `perplexity` and
    `accuracy`. If all words are the grammar's, those above follow, without `cosine`: the true probabilities are not
    known. They are over the test sentences that the grammar has; a word that the files do not have counts as one
    that is never expected. `remark` says what keeps sentences from being judged so.

    Takes a configuration, or the fields of `ElmanGrammarConfig` as keywords. Raises `ConfigurationError` for settings
    out of range and for a corpus that cannot be used.
    """

    score = "agreement"
    input_range = (-SHIFT, 1.0 - SHIFT)
    one_hot = True
    larger_is_better = True
    judged_by_outputs = True
    larger = ("cosine", "max_prediction", "auc", "accuracy")
    smaller = ("agreement_error", "cross_entropy_bits", "perplexity")

    def __init__(self, config: ElmanGrammarConfig | None = None, /, **settings: Any) -> None:
        config = ElmanGrammarConfig.of(config, settings)
        self.corpus = config.corpus
        self.complex_share = config.complex_share
        self._config = config
        self.remark = ""
        self.probabilities: np.ndarray | None = None
        if self.corpus is not None:
            if isinstance(self.corpus, str):
                training, testing = divide(Path(self.corpus), config.seed, config.dataset)
            else:
                training, testing = sentences_of(Path(self.corpus.train)), sentences_of(Path(self.corpus.test))
            self.words = tuple(sorted({word for one in training + testing for word in one}))
            train, test = numbered(training, self.words), numbered(testing, self.words)
            self._recognise(testing)
        else:
            spoken = language(config.complex_share)
            training, testing, probe = draw(spoken, config.sentences, config.seed, config.dataset, PROBE)
            self._judged = len(testing.symbols) - 1
            testing = testing.then(probe)
            train, test, self.words = training.symbols, testing.symbols, VOCABULARY
            self.probabilities = spoken.next_word[testing.following[:-1]]
            self._distances = testing.distances[1:]
        self._following = test[1:]
        self.tokenizer: Tokenizer = WordTokenizer(self.words)
        self.vocabulary = len(self.words)
        if len(train) * self.vocabulary > _LARGEST:
            raise ConfigurationError(
                f"{len(train)} training words of {self.vocabulary} kinds are too many to hold one-hot "
                f"({_LARGEST} numbers at most). Use fewer lines or map rare words to one."
            )
        self.tokens_train: Corpus = train
        self.tokens_validation: Corpus = train[:0]
        self.tokens_test: Corpus = test
        self.train, self.test = self._split(train), self._split(test)

    def _recognise(self, testing: list[Words]) -> None:
        """What of the test the grammar has, and a remark on what it has not."""
        self._recognised: Sentences | None = None
        strange = [word for word in self.words if word not in VOCABULARY]
        if strange:
            self.remark = (
                f"Agreement is not judged, because Elman's grammar does not have {len(strange)} of the "
                f"{len(self.words)} words; the first is {strange[0]!r}."
            )
            return
        found, unknown = recognised(language(), testing)
        if unknown:
            self.remark = (
                f"Agreement is not judged in {len(unknown)} of {len(testing)} test sentences, because Elman's grammar "
                f"with at most {LONGEST} words does not have them; the first is {' '.join(unknown[0])!r}."
            )
        if len(unknown) < len(testing):
            self._recognised = found

    def _split(self, symbols: np.ndarray) -> Split:
        onehot = np.eye(self.vocabulary, dtype=np.float32) - np.float32(SHIFT)
        before, following = symbols[np.newaxis, :-1], symbols[np.newaxis, 1:]
        return Split(onehot[before], onehot[following], symbols=before)

    @property
    def tokens(self) -> Tokens:
        """The same sentences for models that learn from tokens; without a validation part."""
        return self

    def encode(self, text: str) -> np.ndarray:
        """Tokens (time,) of a text. Raises `InputRangeError` for a word that the sentences do not have."""
        return self.tokenizer.encode(text)

    def evaluation_of(self, cross_entropy: float, accuracy: float) -> Evaluation:
        """The metrics that hold for every corpus, of a model with this mean cross-entropy (nats per word)."""
        bits = cross_entropy / math.log(2)
        return Evaluation({"cross_entropy_bits": bits, "perplexity": 2.0**bits, "accuracy": accuracy})

    def training_words(self, complex_share: float) -> np.ndarray:
        """Tokens (time,) of other training sentences, of which this share has a relative clause.

        As many as `train` has, drawn with the same seed; none is a test sentence. Raises `ConfigurationError` where
        there can be none: for a corpus, and where `complex_share` of the task is 1.
        """
        config = self._config
        if config.corpus is not None or config.complex_share == 1:
            raise ConfigurationError(
                "sentences with another share of relative clauses can only be drawn from the grammar, with task.corpus "
                "null and task.complex_share below 1"
            )
        spoken = language(config.complex_share)
        spoken = replace(spoken, probability=conditioned(spoken.probability, spoken.is_complex, complex_share))
        return draw(spoken, config.sentences, config.seed, config.dataset, PROBE)[0].symbols

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (1, time, vocabulary) for the test split; the class describes the metrics.

        `arrays` are `roc/false_alarm` and `roc/hit` (at most 500 points), `verbs/distance`,
        `verbs/count` and `verbs/errors` (7,), and for Fig. 2 `probe/outputs` and `probe/probabilities`
        (5, 24), after each word of "boy who walks sees cats".

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        values = checked_outputs(outputs, self.test)[0]
        if self.probabilities is None:
            cross_entropy = cross_entropy_of(as_activation(values, scale), self._following, scale)
            evaluation = self.evaluation_of(cross_entropy, float((values.argmax(axis=1) == self._following).mean()))
            if self._recognised is None:
                return evaluation
            by_grammar = self._judged_by_grammar(values, self._recognised, scale)
            return Evaluation(evaluation.metrics | by_grammar.metrics, by_grammar.arrays)
        parts = (values, self.probabilities, self._following, self._distances)
        evaluation = grammar_evaluation(*(part[: self._judged] for part in parts), scale=scale)
        # The step at index `_judged` reads the last test sentence's stop; the probe begins after it.
        probe = slice(self._judged + 1, None)
        evaluation.arrays["probe/outputs"] = as_activation(values[probe], scale)
        evaluation.arrays["probe/probabilities"] = self.probabilities[probe]
        return evaluation

    def _judged_by_grammar(self, values: np.ndarray, test: Sentences, scale: OutputScale) -> Evaluation:
        outputs = np.full((len(values), len(VOCABULARY)), -SHIFT if scale == "scores" else 0.0)
        outputs[:, [VOCABULARY.index(word) for word in self.words]] = values
        following = test.following[:-1]
        parts = (outputs, language().next_word[following], test.symbols[1:], test.distances[1:])
        evaluation = grammar_evaluation(*(part[following >= 0] for part in parts), scale=scale)
        # How often each rule is used in these sentences is not known.
        del evaluation.metrics["cosine"]
        return evaluation

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Beside the paper's; for a corpus without those, and with what keeps it from being judged by the grammar."""
        if self.corpus is None:
            return report.tables(rows)
        return report.corpus_tables(rows, self.remark)

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Agreement and ROC curves, and of generated sentences Fig. 2 of the paper."""
        return report.figures(rows, generated=self.corpus is None)


# ---- Section 4.1: how close outputs come to what the grammar allows.


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
    norms = np.linalg.norm(level, axis=1) * np.linalg.norm(probabilities, axis=1)
    cosine = np.einsum("tw,tw->t", level, probabilities) / np.where(norms > 0, norms, 1)
    largest = possible[np.arange(len(outputs)), normalised.argmax(axis=1)]
    metrics = {"cosine": float(cosine.mean()), "max_prediction": float(largest.mean())}
    class_scores = np.add.reduceat(normalised, _ROC_START, axis=1) / _ROC_SIZE
    class_possible = np.logical_or.reduceat(possible, _ROC_START, axis=1)
    metrics["auc"] = auc(class_scores.ravel(), class_possible.ravel())
    for group, members in _AUC_GROUPS.items():
        columns = map(_ROC_CLASSES.index, members)
        of_members = [auc(class_scores[:, column], class_possible[:, column]) for column in columns]
        metrics[f"auc/{group}"] = float(np.mean(of_members))
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
