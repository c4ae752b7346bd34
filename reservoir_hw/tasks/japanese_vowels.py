"""Japanese vowels: who speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks import datasets
from reservoir_hw.tasks.report import by_model, confusion_figure, counted_classes, error_figure, error_table, padded
from reservoir_hw.tasks.task import (
    Evaluation,
    Figures,
    OutputScale,
    Row,
    Split,
    Table,
    Task,
    TaskConfig,
    checked_outputs,
)

# ---- Errors on the Japanese vowels that papers print.


ERRORS = (("1000 echo state networks of 4 nodes, voting (Jaeger et al. 2007)", "0", "0.00%"),)
"""What, errors, error rate; of the 370 utterances of the test."""


# ---- Who speaks: nine speakers and the same two vowels (Kudo, Toyama & Shimbo 1999).


SPEAKERS = 9
COEFFICIENTS = 12

UTTERANCES = {"train": (30,) * SPEAKERS, "test": (31, 35, 88, 44, 29, 24, 40, 50, 29)}
"""Of each speaker, in the order of the files."""


def utterances(text: str) -> list[np.ndarray]:
    """The utterances in a file of the data set, each (steps, 12), float64: one step in a line, a blank line after each.

    Raises `ConfigurationError` for anything else.
    """
    try:
        found = [np.array([line.split() for line in block.splitlines()], float) for block in text.split("\n\n")[:-1]]
    except ValueError as error:
        raise ConfigurationError(f"this is no file of the Japanese vowels: {error}") from error
    if not found or any(block.ndim != 2 or block.shape[1] != COEFFICIENTS for block in found):
        raise ConfigurationError(f"this is no file of the Japanese vowels: every line holds {COEFFICIENTS} numbers")
    return found


class JapaneseVowelsConfig(TaskConfig):
    """Say which of nine men is speaking (Kudo, Toyama & Shimbo 1999)."""

    kind: Literal["japanese_vowels"]

    def build(self) -> JapaneseVowels:
        """A `JapaneseVowels`."""
        return JapaneseVowels()


class JapaneseVowels(Task):
    """Say which of nine men is speaking.

    Each has said the vowels /ae/ a number of times. Inputs are the 12 coefficients of a linear prediction analysis
    (LPC cepstrum, every 6.4 ms) as they are in the files, between about -1.9 and 2.3; an utterance is a sequence of
    7 to 29 of them that begins at rest. 270 utterances, 30 of each speaker, are for training, 370 for the test: (270,
    26, 12) and (370, 29, 12), padded with 0 behind the `lengths` of the splits. Targets are 1 for the speaker and 0
    for the eight others, at every step: (utterances, steps, 9).

    `evaluate` averages the outputs over the steps of an utterance, takes the speaker with the largest mean, and gives
    `error_rate`, the share of utterances with the wrong one, with the ends of its 95 % interval, `error_rate/low` and
    `/high` (Wilson 1927), and `error_rate/step`, the share of steps at which another output was the largest.

    There are 370 test utterances: one error is 0.27 %.

    Raises what `datasets.contents` raises where the data set is not at hand.
    """

    score = "error_rate"
    input_range = (-2.0, 2.5)

    def __init__(self) -> None:
        self.train, self.test = _split("train"), _split("test")

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """Judge `outputs` (utterances, steps, 9) for the test split; the class describes the metrics.

        What stands at steps of padding is ignored. `arrays` are `errors` and `trials` (), and `confusion` (speaker,
        answer), counts.

        Raises `ShapeError` for other shapes and `InputRangeError` for NaN or infinity.
        """
        outputs, valid = checked_outputs(outputs, self.test), self.test.valid
        speakers = self.test.targets[:, 0].argmax(axis=1)
        # The padding is 0 in both, and what the sum is divided by does not change which is the largest.
        found = counted_classes(speakers, outputs.sum(axis=1).argmax(axis=1), SPEAKERS)
        found.metrics["error_rate/step"] = float((outputs.argmax(axis=2) != speakers[:, None])[valid].mean())
        return found

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Error rates by model, with published ones below."""
        ours = error_table(by_model(rows), "Japanese vowels", "utterances", ["error_rate/step"])
        published = [[f"published: {what}", "", "370", errors, rate, "", ""] for what, errors, rate in ERRORS]
        return [replace(ours, rows=[*ours.rows, *published])]

    def figures(self, rows: Sequence[Row]) -> Figures:
        """Error rates, and who was taken for whom."""
        models = by_model(rows)
        return {
            "error_rate": error_figure(models, "utterances", 8 / 9),
            "confusion": confusion_figure(models, range(1, 10), "utterances", "speaker"),
        }


def _split(name: str) -> Split:
    found = utterances(datasets.contents(f"japanese_vowels_{name}").decode("ascii"))
    return padded(found, np.repeat(np.arange(SPEAKERS), UTTERANCES[name]).tolist(), SPEAKERS)
