"""Another task, judged on the last part of its own training data: settings are chosen there, not on the test."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema

from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Split, Table, Task, TaskConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AnyTaskConfig = Annotated[
    SerializeAsAny[TaskConfig],
    BeforeValidator(lambda value: registry.of_its_kind("tasks", value, TaskConfig)),
    WithJsonSchema({"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}),
]


class ValidationConfig(TaskConfig):
    """Another task, judged on the last part of its own training data. Its test is not touched."""

    kind: Literal["validation"]
    task: AnyTaskConfig = Field(description="the task whose settings are to be chosen")
    share: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.25, description="of the training data that is judged")

    def build(self) -> Validation:
        """A `Validation` with these settings."""
        return Validation(self)


class Validation(Task):
    """Another task, judged on the last part of its own training data (`validation_of`), with its metrics and report.

    Takes a configuration, or the fields of `ValidationConfig` as keywords. Raises `ConfigurationError` for settings out
    of range, and as `validation_of`.
    """

    def __init__(self, config: ValidationConfig | None = None, /, **settings: Any) -> None:
        config = ValidationConfig.of(config, settings)
        judged = validation_of(config.task.build(), config.share)
        self._judged = judged
        self.train, self.test, self.closed_loop = judged.train, judged.test, judged.closed_loop
        self.score, self.larger_is_better, self.piece_steps = judged.score, judged.larger_is_better, judged.piece_steps
        self.larger, self.smaller = judged.larger, judged.smaller
        self.input_range, self.one_hot, self.input_length = judged.input_range, judged.one_hot, judged.input_length

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """As the task, of the part that is judged."""
        return self._judged.evaluate(outputs, scale)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Those of the task."""
        return self._judged.tables(rows)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Those of the task."""
        return self._judged.figures(rows)


def validation_of(task: Task, share: float = 0.25) -> Task:
    """`task` with the first part of its training data to learn from, and the last `share` of it as its test.

    Of several sequences, every (1/share)th is judged, rounded. In a closed loop the forecasts begin at places that are
    equally far apart in the part that is judged, as many as in the task, if there are so many places.

    Raises `ConfigurationError` for a text, and where the part is too short.
    """
    if task.tokens is not None:
        raise ConfigurationError("kind validation: a text has a validation part of its own")
    if task.own_validation:
        raise ConfigurationError(f"kind validation: this task has a validation of its own: {task.own_validation}")
    found = copy.copy(task)
    train = task.train
    if len(train.inputs) > 1:
        every = max(2, round(1 / share))
        judged = np.arange(len(train.inputs)) % every == every - 1
        found.train, found.test = _sequences(train, ~judged), _sequences(train, judged)
        return found
    steps = train.inputs.shape[1]
    judged_steps = int(steps * share) // task.piece_steps * task.piece_steps
    cut = steps - judged_steps
    needed = task.test.inputs.shape[1] + task.test.targets.shape[1] if task.closed_loop else 2
    if cut < 1 or judged_steps < needed:
        raise ConfigurationError(
            f"kind validation: a share of {share:g} of {steps} training steps is {judged_steps} steps, but at least "
            f"{needed} are needed; take a larger share or more training steps"
        )
    found.train = _steps(train, slice(0, cut))
    if task.closed_loop:
        found.test = _forecasts(train.inputs[0, cut:], task.test)
    else:
        found.test = _steps(train, slice(cut, steps))
    return found


def _sequences(split: Split, which: np.ndarray) -> Split:
    lengths = None if split.lengths is None else np.asarray(split.lengths)[which]
    symbols = None if split.symbols is None else split.symbols[which]
    return Split(split.inputs[which], split.targets[which], symbols, lengths, split.at_end)


def _steps(split: Split, which: slice) -> Split:
    symbols = None if split.symbols is None else split.symbols[:, which]
    return Split(split.inputs[:, which], split.targets[:, which], symbols)


def _forecasts(series: np.ndarray, test: Split) -> Split:
    """Warm-up and continuation of forecasts in `series` (time, channels), as long as those of `test`."""
    starts, warmup = test.inputs.shape[:2]
    window = warmup + test.targets.shape[1]
    first = np.unique(np.linspace(0, len(series) - window, starts).astype(int))
    pieces = np.stack([series[begin : begin + window] for begin in first])
    return Split(pieces[:, :warmup], pieces[:, warmup:])
