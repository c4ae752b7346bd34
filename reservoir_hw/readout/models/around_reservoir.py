"""What a model that is trained by gradients says of the reservoir it drives: inputs, gradients and a twin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, PositiveFloat, ValidationError, model_validator

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import AnyReservoirConfig, ReservoirConfig

if TYPE_CHECKING:
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


class AroundReservoir(Config):
    """Fields of a model that drives a reservoir in its layers."""

    reservoir_gradient: Literal["stop", "through", "twin"] = Field(
        default="stop", description="whether gradients pass the reservoir: not, as it is a differentiable simulation, "
        "or through its `twin`"
    )  # fmt: skip
    twin: AnyReservoirConfig | None = Field(
        default=None, description="a differentiable simulation of the device, for reservoir_gradient: twin"
    )
    input_map: InputMap = Field(default=InputMap(), description="into the range of the device")

    @property
    def passes_gradients(self) -> bool:
        """Whether what lies before the reservoir can be trained."""
        return self.reservoir_gradient != "stop"

    def layer(self, reservoir: Reservoir, twin: Reservoir | None = None) -> ReservoirLayer:
        """An open reservoir, and its twin if there is one, as a layer."""
        from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer

        return ReservoirLayer(reservoir, gradient=self.reservoir_gradient, twin=twin, **self.input_map.model_dump())

    def check_passes(self, what: str, config: ReservoirConfig) -> None:
        """Raise `ConfigurationError` where no gradient can pass a simulation, as far as its configuration tells."""
        # What has no such key may know when it is opened; on a GPU torch computes anyway.
        computed = getattr(config, "gradients", True) or getattr(config, "device", "cpu") != "cpu"
        if "differentiable" in config.never or not computed:
            advice = "take another policy" if "differentiable" in config.never else "give it gradients: true"
            raise ConfigurationError(
                f"reservoir_gradient is {self.reservoir_gradient}, but no gradient passes {what} of kind "
                f"{config.kind}: {advice}"
            )

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

    @model_validator(mode="after")
    def _twin_where_it_is_used(self) -> Self:
        if (self.twin is not None) != (self.reservoir_gradient == "twin"):
            raise ValueError("`twin:` and reservoir_gradient: twin belong together")
        return self
