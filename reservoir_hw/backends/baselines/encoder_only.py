"""The encoded inputs alone: what the input chain of a device is worth without the device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import decisive
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import OutOfRange, Reservoir
from reservoir_hw.core.reservoir_config import AnyReservoirConfig, Encoder, ReservoirConfig
from reservoir_hw.core.spec import Identity, ReservoirSpec


class EncoderOnlyConfig(ReservoirConfig):
    """What the device's own input chain makes of each input, in the place of the device's states.

    Masked inputs for a delay loop and behind an `input_mask`, W_in u + b for a network, the volts of each virtual node
    for a bench, each through the converter that the configuration names; else the inputs themselves. The device is
    neither opened nor driven.
    """

    is_computed = True

    never = frozenset({"settable", "differentiable"})

    kind: Literal["encoder_only"]
    of: AnyReservoirConfig | None = Field(
        default=None, description="the device; among the baselines of an experiment, by default its reservoir"
    )

    @model_validator(mode="after")
    def _mask_of_the_device(self) -> Self:
        if self.input_mask is not None:
            raise ValueError("encoder_only has the input_mask of its device: give it in `of:`")
        return self

    @property
    def seed(self) -> int:
        """That of the device: it draws an `input_mask` that has none of its own."""
        return getattr(self.of, "seed", 0)

    @property
    def nodes(self) -> int | None:
        """The numbers in an encoded input; None as long as the number of inputs is not known."""
        return None if self.of is None or self.inputs is None else self.of.encoded_width

    @property
    def kind_name(self) -> str:
        """encoder only(nodes), or whose encoder it is where the number of inputs is not known."""
        if self.nodes is None and self.of is not None:
            return f"encoder of {self.of.name}"
        return "encoder only" + (f"({self.nodes})" if self.nodes else "")

    def of_device(self, device: ReservoirConfig) -> Self:
        """This configuration for `device`, unless it names one itself."""
        return self if self.of is not None else self.model_copy(update={"of": device})

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration, and that of the device, for a task with these channels."""
        of = self._device().for_inputs(inputs)
        if of.inputs is None:
            # What it will make of them it says when it is opened; until then they are what enters.
            of = of.model_copy(update={"inputs": Channels.of(inputs).count})
        # What stands before the device is that of this reservoir, too.
        shared = {"inputs": of.inputs, "input_mask": of.input_mask, "out_of_range": of.out_of_range}
        told = self.model_copy(update={"of": of, **shared})
        return super(EncoderOnlyConfig, told).for_inputs(inputs)

    def for_layers(self, width: int | None, layers: int | None) -> list[ReservoirConfig]:
        """The encoder of the device of each layer."""
        return [self.model_copy(update={"of": one}) for one in self._device().for_layers(width, layers)]

    def build(self) -> EncoderOnly:
        """An `EncoderOnly` for the encoder of the device."""
        of = self._device()
        if of.inputs is None:
            of = of.model_copy(update={"inputs": self.required_inputs()})
        return EncoderOnly(
            of.encoder(),
            of.required_inputs(),
            of.encoded_width,
            device=f"{of.kind} {json.dumps(decisive(of), sort_keys=True)}",
            input_range=getattr(of, "input_range", None),
            out_of_range=self.out_of_range,
        )

    def _device(self) -> ReservoirConfig:
        if self.of is None:
            raise ConfigurationError("kind encoder_only needs `of:`, the reservoir whose input chain it is")
        return self.of


class EncoderOnly(Reservoir):
    """A reservoir without memory: state t is what `encoder` makes of input t.

    Parameters
    ----------
    encoder
        From inputs (batch, time, inputs), float64, to what drives the device, (batch, time, nodes). How many steps it
        is given at once must not matter.
    inputs, nodes
        How many there are of them.
    device
        The device that the encoder belongs to, for the identity.
    input_range, out_of_range
        Its range, and what becomes of inputs outside it.
    """

    def __init__(
        self,
        encoder: Encoder,
        inputs: int,
        nodes: int,
        *,
        device: str = "",
        input_range: tuple[float, float] | None = None,
        out_of_range: OutOfRange = "error",
    ) -> None:
        spec = ReservoirSpec(
            inputs=inputs,
            nodes=nodes,
            dtype="float64",
            input_range=input_range,
            snapshot=True,
            deterministic=True,
            identity=Identity(vendor="reservoir_hw", model="encoder_only", simulated=True, content=device),
            not_supported={
                "settable": "it has no state",
                "programmable": "there is nothing in it to program",
                "differentiable": "it is computed by numpy, without gradients",
            },
        )
        super().__init__(spec, out_of_range=out_of_range)
        self._encoder = encoder

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        return self._encoder(u)

    def _snapshot(self) -> dict[str, np.ndarray]:
        return {}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Nothing is remembered."""
