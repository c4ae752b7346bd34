"""The standard tasks of a bench, as `standard.yaml` has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.core.channels import into_range
from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.configuration.document import short
from reservoir_hw.tasks.task import Split


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
    return validate(_StandardTasks, Document.from_mapping({"tasks": Document.from_file(path).data}, path.name)).tasks


# ---- The settings that are tried for the device and for each baseline: as many for each of them.


SETTINGS = 15
"""So many are tried for each model."""


@dataclass(frozen=True)
class Candidate:
    """A setting that is tried: of which model, the reservoir (None is the device itself), and the penalty."""

    model: str
    reservoir: dict[str, Any] | None
    alpha: float

    @property
    def label(self) -> str:
        """A baseline with its settings; nothing for the device and its encoder, which have none beside the penalty."""
        return "" if self.reservoir is None or "of" in self.reservoir else short(self.reservoir)

    @property
    def row(self) -> dict[str, Any]:
        """As a row of `vary`."""
        of_reservoir = {} if self.reservoir is None else {"reservoir": self.reservoir}
        return {**of_reservoir, "readout.alpha": self.alpha}


def candidates(model: str, reservoirs: Sequence[dict[str, Any] | None]) -> list[Candidate]:
    """`SETTINGS` of them: each reservoir with its share of penalties, the first ones with one more if need be."""
    found = []
    for number, reservoir in enumerate(reservoirs):
        share = SETTINGS // len(reservoirs) + (number < SETTINGS % len(reservoirs))
        found += [Candidate(model, reservoir, alpha) for alpha in penalties(share)]
    return found


def penalties(count: int) -> list[float]:
    """Of the ridge regression, from 1 to 1e-8 in equal ratios, two or more; of equal ones the first counts."""
    return [float(f"{value:.3g}") for value in np.logspace(0, -8, count)]


# ---- Inputs of a task brought into the range that a device declares.


@dataclass(frozen=True)
class Fitted:
    """A section `reservoir` for the inputs of a task; `what` was done to them, nothing where they lie within."""

    section: Document
    what: str = ""


def fitted(section: Document, config: ReservoirConfig, spec: ReservoirSpec, train: Split) -> Fitted:
    """The section with `out_of_range: clip`, and an `input_mask` where training inputs lie outside the range.

    The mask maps the least and the largest training input, behind the mask of the file if there is one, to the ends of
    the middle nine tenths of the range. It is one factor and one offset for all channels, and acts on what a closed
    loop feeds back as well. Raises `ConfigurationError` where the file's mask is a file itself.
    """
    assert spec.input_range is not None, "was looked at"
    low, high = spec.input_range
    inputs, given = train.inputs[train.valid], config.input_mask
    channels, clipped = train.inputs.shape[2], {**section.data, "out_of_range": "clip"}
    if isinstance(given, MaskConfig):
        inputs = given.build(spec.inputs, channels, seed=getattr(config, "seed", 0)).apply(inputs)
    elif channels != spec.inputs:
        # The mask that spreads them stays within the range, too.
        return Fitted(Document(clipped, section.origins))
    smallest, largest = float(inputs.min()), float(inputs.max())
    if low <= smallest and largest <= high:
        return Fitted(Document(clipped, section.origins))
    if isinstance(given, MaskConfig) and given.file is not None:
        raise ConfigurationError(
            f"its inputs are {smallest:.3g} to {largest:.3g} behind the mask in {given.file}, outside the range "
            f"[{low:g}, {high:g}] of the device: scale that mask, or draw one with input_mask.scaling and .offset"
        )
    gain, offset = into_range((smallest, largest), spec.input_range)
    mask: dict[str, Any] = {"kind": "one_to_one", "scaling": gain, "offset": offset}
    if isinstance(given, MaskConfig):
        scaling = (np.asarray(given.scaling) * gain).tolist()
        scaled = {"scaling": scaling, "bias_scaling": gain * given.bias_scaling, "offset": gain * given.offset + offset}
        mask = {**given.model_dump(mode="json", exclude_defaults=True), **scaled}
    sign = "-" if offset < 0 else "+"
    what = (
        f"{gain:g} u {sign} {abs(offset):g}; training inputs {smallest:.3g} to {largest:.3g}, range {low:g} to {high:g}"
    )
    return Fitted(Document({**clipped, "inputs": spec.inputs, "input_mask": mask}, section.origins), what)
