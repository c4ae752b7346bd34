"""What the simulated networks share: the file or the options that decide their weights, and the device around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from reservoir_hw.backends.simulated.engines import Engine, NumbaEngine, TorchEngine, check_device
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities
from reservoir_hw.backends.simulated.nonidealities.rounding import to_weight_bits
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig, SimulatedReservoir, have_numba
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.reservoir_config import Encoder
from reservoir_hw.core.signal import Mask
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec
from reservoir_hw.networks.topologies import Random, Topology

Probability = Annotated[float, Field(gt=0, le=1)]
Scaling = float | list[float]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]


class NetworkConfig(SimulatedConfig):
    """What every simulated network can be told; each kind declares the fields, in an order of its own."""

    drawing: ClassVar[tuple[str, ...]]
    """The fields that decide how weights are drawn, beside `nodes` and `seed`."""

    input_scalings: ClassVar[tuple[str, ...]] = ("input_scaling",)
    """Those of them that hold one number, or one for each input."""

    if TYPE_CHECKING:
        nodes: int | None
        weights: str | None
        gradients: bool

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        fields = type(self).model_fields
        names = (*self.drawing, "nodes", "seed")
        given = sorted(name for name in names if getattr(self, name) != fields[name].default)
        if self.weights is not None and given:
            raise ValueError(f"the file in `weights` decides about {', '.join(given)}; remove them")
        if self.weights is None and self.nodes is None:
            raise ValueError("nodes is missing: how many nodes shall the network have?")
        self._topology().check(self.nodes, {name: getattr(self, name) for name in self.model_fields_set})
        if self.gradients and self.nonidealities.rounds:
            raise ValueError("no gradient passes a converter: remove gradients, or bits from nonidealities")
        return self

    def for_inputs(self, inputs: int) -> Self:
        """This configuration for a task with `inputs` channels; the input scalings and the weights must fit too."""
        for name in self.input_scalings:
            scaling = getattr(self, name)
            if self.input_mask is None and isinstance(scaling, list) and len(scaling) != inputs:
                raise ConfigurationError(f"{name} has {len(scaling)} numbers, the task has {inputs} input channels")
        config = super().for_inputs(inputs)
        if config.nonidealities.loop.weight_bits is not None:
            to_weight_bits(config.drawn_or_loaded(), config.nonidealities.loop)
        return config

    def drawn_or_loaded(self) -> Any:
        """The weights that the options draw or the file holds.

        Raises `ConfigurationError` where they cannot be drawn or read, and where a file is for another task.
        """
        if self.weights is None:
            return self._draw(self.required_inputs())
        weights = self._load(self.weights)
        if self.inputs is not None and self.inputs != weights.inputs:
            raise ConfigurationError(
                f"the task has {self.inputs} input channels, but the weights in {self.weights} take {weights.inputs}"
            )
        return weights

    @property
    def encoded_width(self) -> int:
        """One number for each node."""
        return self.nodes or self.drawn_or_loaded().nodes

    def encoder(self) -> Encoder:
        """W_in u + b, behind the DAC; of a gated network what drives its states, without that of its gates."""
        weights = to_weight_bits(self.drawn_or_loaded(), self.nonidealities.loop)
        front = Mask(*self._front(weights))
        return lambda u: front.apply(self.converted(u))

    def _front(self, weights: Any) -> tuple[Any, Any]:
        """W_in and b."""
        return weights.W_in, weights.bias

    def _topology(self) -> Topology:
        return Random()

    def _draw(self, inputs: int) -> Any:
        raise NotImplementedError

    def _load(self, path: str) -> Any:
        raise NotImplementedError


class SimulatedNetwork(SimulatedReservoir):
    """A network with given weights: `EsnWeights`, or those of another kind.

    On the CPU a numba kernel drives it. Torch does where gradients or a GPU are asked for, or where numba is
    not installed; the provenance says which. A torch network is differentiable, a numba one is not.
    """

    weights: Any

    state_range: tuple[float, float] | None = (-1.0, 1.0)
    """Where the activation keeps all states, if it does."""

    def __init__(
        self,
        weights: Any,
        *,
        dtype: DType = "float32",
        device: str = "cpu",
        gradients: bool = False,
        nonidealities: Nonidealities = IDEAL_DEVICE,
        out_of_range: OutOfRange = "error",
    ) -> None:
        self._dtype: DType = dtype
        self._loop_config = nonidealities.loop
        torch_is_needed = device != "cpu" or gradients or not have_numba()
        if torch_is_needed:
            self.native = "torch"
            self.device = device
        self.weights = self._stored(weights)
        spec = ReservoirSpec(
            inputs=weights.inputs,
            nodes=weights.nodes,
            dtype=dtype,
            state_range=self.state_range,
            snapshot=True,
            settable=True,
            programmable=True,
            deterministic=True,
            differentiable=torch_is_needed,
            identity=self._identity(),
        )
        super().__init__(spec, self._new_engine(), nonidealities=nonidealities, out_of_range=out_of_range)

    def _stored(self, weights: Any) -> Any:
        """The weights as the device holds them."""
        return to_weight_bits(weights, self._loop_config)

    def _new_engine(self) -> Engine:
        if self.native == "torch":
            check_device(self.device)
            return TorchEngine(self._torch_loop(), self.weights.nodes, self._dtype, self.device)
        return NumbaEngine(self._cpu_loop(), self.weights.nodes, self._dtype)

    def _cpu_loop(self) -> Callable[..., Any]:
        """The compiled time loop of these weights, as `NumbaEngine` takes it."""
        raise NotImplementedError

    def _torch_loop(self) -> Callable[..., Any]:
        """The time loop of these weights in torch, as `TorchEngine` takes it."""
        raise NotImplementedError

    def _identity(self) -> Identity:
        raise NotImplementedError

    def _given_weights(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """Weights from arrays that a user uploads."""
        raise NotImplementedError

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        new = self._given_weights(weights)
        if (new.nodes, new.inputs) != (self.weights.nodes, self.weights.inputs):
            raise ConfigurationError(
                f"upload: the new weights are for {new.nodes} nodes and {new.inputs} inputs, "
                f"the network has {self.weights.nodes} and {self.weights.inputs}"
            )
        self.weights = self._stored(new)
        self._engine = self._new_engine()
        return self._with_identity(self._identity())
