"""Classifiers of sequences as an experiment file names them: trained gates around the reservoir, and a GRU."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from reservoir_hw.core.arrays import import_torch
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import AnyReservoirConfig, ReservoirConfig
from reservoir_hw.readout.configuration import GradientReadoutConfig
from reservoir_hw.tasks.task import Split, Task

if TYPE_CHECKING:
    from reservoir_hw.readout.models.gated import GatedRecurrence, SequenceClassifier
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer


class InputMap(Config):
    """What a reservoir is driven with: u -> clip(scale u + offset, offset - limit, offset + limit)."""

    scale: float = 1.0
    offset: float = 0.0
    limit: PositiveFloat | None = Field(
        default=None, description="null: the largest that the device's range allows; what is clipped is counted"
    )

    def applied_to(self, channels: Channels) -> Channels:
        """Channels of known length behind it."""
        if channels.length is None:
            return channels
        shift = abs(self.offset) * math.sqrt(channels.count)
        return replace(channels, length=abs(self.scale) * channels.length + shift)

    @model_validator(mode="after")
    def _passes_something(self) -> Self:
        if self.scale == 0:
            raise ValueError("scale is 0: nothing would reach the reservoir")
        return self


class AroundReservoir(GradientReadoutConfig):
    """A model that drives a reservoir in its layers."""

    reservoir_gradient: Literal["stop", "through", "twin"] = Field(
        default="stop", description="whether gradients pass the reservoir: not, as it is a differentiable simulation, "
        "or through its `twin`"
    )  # fmt: skip
    twin: AnyReservoirConfig | None = Field(
        default=None, description="a differentiable simulation of the device, for reservoir_gradient: twin"
    )
    input_map: InputMap = Field(default=InputMap(), description="into the range of the device")

    def layer(self, reservoir: Reservoir, twin: Reservoir | None = None) -> ReservoirLayer:
        """An open reservoir, and its twin if there is one, as a layer."""
        from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

        return ReservoirLayer(reservoir, gradient=self.reservoir_gradient, twin=twin, **self.input_map.model_dump())

    def passed(self, config: ReservoirConfig) -> ReservoirConfig:
        """The reservoir, which computes gradients where they are to pass it and it can.

        Raises `ConfigurationError` where its other settings do not allow that.
        """
        if self.reservoir_gradient != "through" or getattr(config, "gradients", None) is not False:
            return config
        try:
            type(config).model_validate({**config.model_dump(exclude_unset=True), "gradients": True})
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ConfigurationError(f"no gradient passes a reservoir of kind {config.kind} as it is: {why}") from None
        return config.model_copy(update={"gradients": True})

    def twins(self, channels: Channels) -> list[ReservoirConfig]:
        """The twin to open, or nothing."""
        return [] if self.twin is None else [self.twin.for_inputs(self._driven_with(self.twin, channels))]

    def check_gradient(self, reservoir: ReservoirConfig, channels: Channels) -> None:
        """Raise `ConfigurationError` where no gradient can pass, as far as the configuration tells."""
        what, passed = "the twin", self.twins(channels)
        if self.reservoir_gradient == "through":
            what, passed = "the reservoir", self.reservoirs(reservoir, channels)
        for config in passed:
            # What has no such key may know when it is opened; on a GPU torch computes anyway.
            computed = getattr(config, "gradients", True) or getattr(config, "device", "cpu") != "cpu"
            if "differentiable" in config.never or not computed:
                advice = "take another policy" if "differentiable" in config.never else "give it gradients: true"
                raise ConfigurationError(
                    f"reservoir_gradient is {self.reservoir_gradient}, but no gradient passes {what} of kind "
                    f"{config.kind}: {advice}"
                )

    def _driven_with(self, _reservoir: ReservoirConfig, channels: Channels, /) -> Channels:
        return channels

    @model_validator(mode="after")
    def _twin_where_it_is_used(self) -> Self:
        if (self.twin is not None) != (self.reservoir_gradient == "twin"):
            raise ValueError("`twin:` and reservoir_gradient: twin belong together")
        return self


class ClassifierConfig(GradientReadoutConfig):
    """A `SequenceClassifier`, trained by gradients on sequences with one label each (`training.gradient`).

    A kind adds `kind: Literal["..."]` and its own fields. Equations: Di Sarli, Gallicchio & Micheli 2022, section 4.
    """

    trained = "on labels"

    bias: bool = Field(default=True, description="one for each gate; the equations as printed have none")

    def check_task(self, task: Task) -> None:
        """Raise `ConfigurationError` for a task that has not one class for each of several sequences."""
        for name in ("train", "test", "held_out"):
            split = getattr(task, name)
            if split is not None and (about := _no_labels(split)):
                raise ConfigurationError(
                    f"readout {self.kind} learns one class for each sequence, with targets that are 1 for it and 0 for "
                    f"the others, and of this task {about} ({name}); take a readout such as ridge"
                )

    def build(self, inputs: int, classes: int, reservoirs: Sequence[Reservoir] = ()) -> SequenceClassifier:
        """The classifier, untrained, around these open reservoirs. Weights depend on `seed` alone.

        Raises `MissingExtra` without torch.
        """
        torch = import_torch(f"readout {self.kind}", "train")
        from reservoir_hw.readout.models.gated import SequenceClassifier

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            recurrence = self._recurrence(inputs, reservoirs)
            if recurrence.inputs != inputs:
                raise ConfigurationError(
                    f"the task has {inputs} input channels, and the device leaves {recurrence.inputs} for them beside "
                    f"those of its {recurrence.nodes} nodes (reservoir.inputs)"
                )
            return SequenceClassifier(recurrence, classes)

    @abstractmethod
    def _recurrence(self, inputs: int, reservoirs: Sequence[Reservoir], /) -> GatedRecurrence: ...


def _no_labels(split: Split) -> str:
    """What the targets of a split have that is not one class for each sequence; nothing where all have one."""
    batch, _, classes = split.targets.shape
    last = split.targets[np.arange(batch), split.ends]
    if classes < 2:
        return "there is one output"
    if not (np.isin(last, (0, 1)).all() and (last.sum(axis=1) == 1).all()):
        return "targets are other numbers"
    changes = (split.targets != last[:, None]).any(axis=2) & split.valid
    if not split.at_end and changes.any():
        row, step = (int(at) for at in np.argwhere(changes)[0])
        return f"sequence {row} has another class at step {step} than at its end"
    return ""


class GatesConfig(AroundReservoir, ClassifierConfig):
    """Trained reset and update gates around the reservoir: Gated ESN RZ."""

    kind: Literal["gates"]
    named = "RZ"
    candidate: Literal["settable", "driven"] = Field(
        default="driven", description="settable: the reservoir makes one step from the gated state (a simulation); "
        "driven: the gated state is fed to it beside the inputs (any device)"
    )  # fmt: skip

    def reservoirs(self, reservoir: ReservoirConfig, channels: Channels) -> list[ReservoirConfig]:
        """Driven with what the candidate gives."""
        if self.candidate == "settable" and "settable" in reservoir.never:
            raise ConfigurationError(
                f"candidate: settable is one step from given states, which no reservoir of kind {reservoir.kind} can "
                "take: candidate: driven feeds the gated states to any device"
            )
        return [self.passed(reservoir).for_inputs(self._driven_with(reservoir, channels))]

    def _driven_with(self, reservoir: ReservoirConfig, channels: Channels, /) -> Channels:
        if self.candidate == "settable":
            return channels
        nodes = getattr(reservoir, "nodes", None)
        # How large gated states are, nobody declares.
        return Channels(channels.count, states=True) if nodes is None else Channels(channels.count + nodes)

    def _recurrence(self, _inputs: int, reservoirs: Sequence[Reservoir], /) -> GatedRecurrence:
        from reservoir_hw.readout.models.gated import DrivenCandidate, GatedRecurrence, SettableCandidate

        layer = self.layer(*reservoirs)
        candidate = SettableCandidate(layer) if self.candidate == "settable" else DrivenCandidate(layer)
        return GatedRecurrence(candidate, bias=self.bias)


class TrainedGruConfig(ClassifierConfig):
    """Gates around a candidate that is trained, too: the GRU of Di Sarli et al. 2022, one bias for each gate."""

    kind: Literal["gru"]
    needs_reservoir = False
    named = "GRU({nodes})"

    nodes: PositiveInt

    def _recurrence(self, inputs: int, _reservoirs: Sequence[Reservoir], /) -> GatedRecurrence:
        from reservoir_hw.readout.models.gated import GatedRecurrence, TrainedCandidate

        return GatedRecurrence(TrainedCandidate(inputs, self.nodes, bias=self.bias), bias=self.bias)
