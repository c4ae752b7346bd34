"""Another task, judged on the last part of its own training data: settings are chosen there, not on the test."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, WithJsonSchema

from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.tasks.task import Task, TaskConfig

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

    def build(self) -> Task:
        """The task, with a part of its training as its test; raises as `Task.validation`."""
        try:
            return self.task.build().validation(self.share)
        except ConfigurationError as error:
            raise ConfigurationError(f"kind validation: {error}") from error
