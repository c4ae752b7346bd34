"""Another task, judged on the last part of its own training data: settings are chosen there, not on the test."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema

from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Table, Task, TaskConfig

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
    """Another task, judged on the last part of its own training data (`Task.validation`), with its metrics and report.

    Takes a configuration, or the fields of `ValidationConfig` as keywords. Raises `ConfigurationError` for settings out
    of range, and as `Task.validation`.
    """

    def __init__(self, config: ValidationConfig | None = None, /, **settings: Any) -> None:
        config = ValidationConfig.of(config, settings)
        try:
            judged = config.task.build().validation(config.share)
        except ConfigurationError as error:
            raise ConfigurationError(f"kind validation: {error}") from error
        self._judge_by(judged)

    def _judge_by(self, judged: Task) -> None:
        self._judged = judged
        self.train, self.test, self.closed_loop = judged.train, judged.test, judged.closed_loop
        self.score, self.larger_is_better, self.piece_steps = judged.score, judged.larger_is_better, judged.piece_steps
        self.larger, self.smaller = judged.larger, judged.smaller
        self.input_range, self.one_hot, self.input_length = judged.input_range, judged.one_hot, judged.input_length
        self.series, self.facts, self.inputs_digest = judged.series, judged.facts, judged.inputs_digest

    def validation(self, share: float) -> Task:
        """The same, judged on the last `share` of what it trains on, with the errors of `Task.validation`."""
        found = copy.copy(self)
        found._judge_by(self._judged.validation(share))
        return found

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        """As the task, of the part that is judged."""
        return self._judged.evaluate(outputs, scale)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Those of the task."""
        return self._judged.tables(rows)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Those of the task."""
        return self._judged.figures(rows)
