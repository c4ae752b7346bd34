"""What the simulated networks share: the file or the options that decide their weights, and the device around them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.backends.simulated.engines import (
    ArrayLoop,
    Engine,
    EngineChoice,
    EngineName,
    JointLoop,
    TensorLoop,
    engine_of,
    network_engine_on_gpu,
)
from reservoir_hw.backends.simulated.memory import free_bytes, in_units, network_bytes, out_of_memory_said
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities
from reservoir_hw.backends.simulated.nonidealities.noise import to_weight_bits
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig, SimulatedReservoir, marked
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.reservoir_config import Encoder
from reservoir_hw.core.signal import Mask
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec
from reservoir_hw.networks.random_matrices import Distribution
from reservoir_hw.networks.topologies import Random, Topology

Probability = Annotated[float, Field(gt=0, le=1)]
Scaling = float | list[float]
WeightStorage: TypeAlias = Literal["float16", "bfloat16"]


class NetworkConfig(SimulatedConfig):
    """What every simulated network can be told; each kind declares the fields, in an order of its own."""

    drawing: ClassVar[tuple[str, ...]]
    """The fields that decide how weights are drawn, beside `nodes` and `seed`."""

    input_scalings: ClassVar[tuple[str, ...]] = ("input_scaling",)
    """Those of them that hold one number, or one for each input."""

    matrices: ClassVar[int] = 1
    """How many of them are recurrent."""

    nodes: PositiveInt | None = Field(default=None, description="needed unless `weights` names a file")
    connectivity: Probability | None = Field(default=None, description="probability of each recurrent weight")
    connections_per_node: PositiveInt | None = Field(default=None, description="exact number instead of connectivity")
    input_connectivity: Probability = 1.0
    input_distribution: Distribution = "uniform"
    weights: str | None = Field(default=None, description="a safetensors file of saved weights instead of drawing them")
    gradients: bool = Field(default=False, description="compute with torch, so that gradients pass through")

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        fields = type(self).model_fields
        given = sorted(n for n in (*self.drawing, "nodes", "seed") if getattr(self, n) != fields[n].default)
        if self.weights is not None and given:
            raise ValueError(f"the file in `weights` decides about {', '.join(given)}; remove them")
        if self.weights is None and self.nodes is None:
            raise ValueError("nodes is missing: how many nodes shall the network have?")
        self._topology().check(self.nodes, {name: getattr(self, name) for name in self.model_fields_set})
        if self.gradients and self.nonidealities.rounds:
            raise ValueError("no gradient passes a converter: remove gradients, or bits from nonidealities")
        EngineChoice(self.engine, self.kind, self.device, self.dtype, self.gradients).check()
        return self

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration for a task with these channels; the input scalings and the weights must fit too."""
        device = self
        if self.weights is not None and self.inputs is None:
            device = self.model_copy(update={"inputs": self._number_of_inputs()})
        config = super(NetworkConfig, device).for_inputs(inputs)
        for name in self.input_scalings:
            scaling, width = getattr(self, name), config.inputs
            if isinstance(scaling, list) and len(scaling) != width:
                raise ConfigurationError(f"{name} has {len(scaling)} numbers, the network has {width} inputs")
        if config.nonidealities.loop.weight_bits is not None:
            to_weight_bits(config.drawn_or_loaded(), config.nonidealities.loop)
        return config

    def weight_bytes(self) -> int:
        """Of the weights on the device, for the number of inputs that is configured; about, where they are drawn."""
        inputs, width = self._number_of_inputs(), 8 if self.dtype == "float64" else 4
        if self.weights is not None:
            parts = self._load(self.weights).parts().values()
            return sum(network_bytes(part.nodes, inputs, part.W, width) for part in parts)
        assert self.nodes is not None
        links = self._topology().expected_links(self.nodes, self.connectivity, self.connections_per_node)
        return self.matrices * network_bytes(self.nodes, inputs, links, width)

    def _number_of_inputs(self) -> int:
        return self._load(self.weights).inputs if self.weights is not None else super()._number_of_inputs()

    def drawn_or_loaded(self) -> Any:
        """The weights that the options draw or the file holds.

        Raises `ConfigurationError` where they cannot be drawn or read, and where a file is for another task.
        """
        if self.weights is None:
            assert self.nodes is not None
            options = {name: getattr(self, name) for name in self.drawing}
            return self._draw(self.nodes, self.required_inputs(), seed=self.seed, **options)
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
        state = to_weight_bits(self.drawn_or_loaded(), self.nonidealities.loop).parts()["state"]
        front = Mask(state.W_in, state.bias)
        return lambda u: front.apply(self.converted(u))

    def options(self) -> dict[str, Any]:
        """What the networks of all kinds take beside their weights."""
        return {**super().options(), "gradients": self.gradients}

    def _topology(self) -> Topology:
        return Random()

    @abstractmethod
    def _draw(self, *sizes: int, **options: Any) -> Any: ...

    @abstractmethod
    def _load(self, path: str) -> Any: ...


class SimulatedNetwork(SimulatedReservoir):
    """A network with given weights: `EsnWeights`, or those of another kind.

    `engine` drives it; without one `engines.py` chooses, and the provenance says which. With gradients a network
    is differentiable.
    """

    kind: ClassVar[str]

    weights: Any

    _weight_storage: WeightStorage | None = None

    state_range: tuple[float, float] | None = (-1.0, 1.0)
    """Where the activation keeps all states, if it does."""

    def __init__(
        self,
        weights: Any,
        *,
        dtype: DType = "float32",
        device: str = "cpu",
        gradients: bool = False,
        engine: EngineName | None = None,
        nonidealities: Nonidealities = IDEAL_DEVICE,
        out_of_range: OutOfRange = "error",
    ) -> None:
        self._dtype: DType = dtype
        self._loop_config = nonidealities.loop
        self.weights = self._stored(weights)
        self.device = device
        self._wanted = EngineChoice(engine, self.kind, device, dtype, gradients)
        spec = ReservoirSpec(
            inputs=weights.inputs,
            nodes=weights.nodes,
            dtype=dtype,
            state_range=self.state_range,
            snapshot=True,
            settable=True,
            programmable=True,
            deterministic=True,
            differentiable=gradients,
            identity=self._identity(),
        )
        super().__init__(spec, self._new_engine(), nonidealities=nonidealities, out_of_range=out_of_range)

    def _choose_engine(self) -> EngineName:
        matrices = [part.W for part in self.weights.parts().values()]
        sparse = any(not isinstance(W, np.ndarray) for W in matrices)
        choice = replace(self._wanted, kind=f"{'sparse' if sparse else 'dense'} {self.kind}")
        if sparse:
            choice = replace(choice, offers=("numba", "torch", "triton"))
        nonzeros, storage_bytes = sum(W.size for W in matrices), 4 if self._weight_storage is None else 2
        return choice.made(network_engine_on_gpu(sparse=sparse, nonzeros=nonzeros, storage_bytes=storage_bytes))

    def _stored(self, weights: Any) -> Any:
        """The weights as the device holds them."""
        return to_weight_bits(weights, self._loop_config)

    def _new_engine(self) -> Engine:
        name = self._choose_engine()
        with out_of_memory_said(self._too_large):
            if name == "numba":
                loop: Any = self._array_loop()
            elif name == "triton":
                from reservoir_hw.backends.simulated.kernels.triton_launch import alone

                loop = alone(self._triton_loop([self.weights]))
            else:
                loop = self._tensor_loop()
            if name == "cuda_graphs":
                from reservoir_hw.backends.simulated.kernels.cuda_graphs import GraphedLoop

                loop = GraphedLoop(loop)
            return engine_of(name, loop, self.weights.nodes, self._dtype, self.device)

    def _too_large(self) -> str:
        inputs, width = self.weights.inputs, np.dtype(self._dtype).itemsize
        needed = sum(network_bytes(one.nodes, inputs, one.W, width) for one in self.weights.parts().values())
        return (
            f"the weights of {self.weights.nodes:,} nodes take about {in_units(needed)} of memory on {self.device}, "
            f"where {in_units(free_bytes(self.device))} are free: choose fewer nodes, or fewer connections_per_node"
        )

    @abstractmethod
    def _array_loop(self) -> ArrayLoop:
        """The compiled time loop of these weights."""

    @abstractmethod
    def _tensor_loop(self) -> TensorLoop:
        """The time loop of these weights in torch."""

    @abstractmethod
    def _triton_loop(self, weights: Sequence[Any]) -> JointLoop:
        """The Triton kernel of a population with these weights, and otherwise like this network."""

    def joint_loop(self, members: Sequence[Any]) -> JointLoop | None:
        """Triton's, without gradients."""
        if {(member.engine.name, member._weight_storage) for member in members} != {("triton", self._weight_storage)}:
            return None
        return self._triton_loop([member.weights for member in members])

    @abstractmethod
    def _identity(self) -> Identity: ...

    @abstractmethod
    def _given_weights(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """Weights from arrays that a user uploads."""

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        new = self._given_weights(weights)
        if (new.nodes, new.inputs) != (self.weights.nodes, self.weights.inputs):
            raise ConfigurationError(
                f"upload: the new weights are for {new.nodes} nodes and {new.inputs} inputs, "
                f"the network has {self.weights.nodes} and {self.weights.inputs}"
            )
        self.weights = self._stored(new)
        self.engine = self._new_engine()
        return self.device_spec.model_copy(update={"identity": marked(self._identity(), self._nonidealities)})
