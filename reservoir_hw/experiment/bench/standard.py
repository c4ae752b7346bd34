"""The standard tasks of a bench, as `standard.yaml` has them."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt

from reservoir_hw.core.configuration import Config, Document, validate


class Published(Config):
    """A figure that a paper prints."""

    value: float
    what: str


class StandardTask(Config):
    """A task with all that an experiment needs beside the reservoir, and what is shown beside it."""

    title: str
    metric: str
    larger_is_better: bool = False
    chosen_by: str | None = Field(
        default=None, description="an error to choose settings by, where few tests err; by default the metric"
    )
    task: dict[str, Any]
    quick: dict[str, Any] = Field(default={}, description="lies over `task` in the quick form")
    washout: NonNegativeInt = 0
    continuous: bool = False
    vary: dict[str, list[Any]] = Field(default={}, description="one key with its repetitions")
    baselines: dict[str, list[dict[str, Any]]] = Field(description="name -> reservoirs that are tried")
    published: list[Published] = Field(default=[])
    of_recordings: bool = Field(default=False, description="asks for the inputs that a recording was made with")

    @property
    def arrow(self) -> str:
        """In which direction the metric gets better."""
        return "↑" if self.larger_is_better else "↓"

    @property
    def worst(self) -> float:
        """What stands for a metric that is missing, because all forecasts have left every bound."""
        return 0.0 if self.larger_is_better else math.inf

    def task_settings(self, *, quick: bool) -> dict[str, Any]:
        """The section `task` of its experiment."""
        document = Document.from_mapping({"task": self.task}, "")
        if quick:
            document.merge(Document.from_mapping({"task": self.quick}, ""))
        return document.data["task"]


class _StandardTasks(Config):
    tasks: dict[str, StandardTask]


def standard_tasks() -> dict[str, StandardTask]:
    """All of them by name, in the order of the page."""
    path = Path(str(files("reservoir_hw.experiment.bench").joinpath("standard.yaml")))
    read = Document.from_file(path)
    return validate(_StandardTasks, Document.from_mapping({"tasks": read.data}, path.name)).tasks
