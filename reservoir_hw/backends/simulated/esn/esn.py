"""The simulated echo state network as a reservoir."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.backends.simulated.engines import NumbaEngine, TorchEngine, check_device
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities
from reservoir_hw.backends.simulated.nonidealities.rounding import rounded, to_float16, to_weight_bits
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig, SimulatedReservoir, have_numba
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec
from reservoir_hw.networks.topologies import Random, Topology

if TYPE_CHECKING:
    from reservoir_hw.networks.weights import EsnWeights

Activation = Literal["tanh", "relu", "identity"]
Distribution = Literal["uniform", "normal", "bernoulli"]
Rate = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, le=1)]


class EsnConfig(SimulatedConfig):
    """Echo state network, s_t = (1-a) ⊙ s_(t-1) + a ⊙ f(W s_(t-1) + W_in u_t + b) (Jaeger et al. 2007)."""

    kind: Literal["esn"]
    nodes: PositiveInt | None = Field(default=None, description="needed unless `weights` names a file")
    leak_rate: Rate | tuple[Rate, Rate] = Field(
        default=1.0, description="a; a pair is a range from which each node draws its own"
    )
    activation: Activation = "tanh"
    topology: Topology = Field(
        default=Random(), description="which nodes are linked: a name, or a mapping with `kind:`"
    )
    spectral_radius: PositiveFloat | None = Field(default=0.9, description="null: W as it was drawn")
    connectivity: Probability | None = Field(default=None, description="probability of each recurrent weight")
    connections_per_node: PositiveInt | None = Field(default=None, description="exact number instead of connectivity")
    weight_distribution: Distribution | None = Field(
        default=None, description="of the weights that the topology does not fix; by default uniform"
    )
    input_connectivity: Probability = 1.0
    input_distribution: Distribution = "uniform"
    input_scaling: float | list[float] = Field(default=1.0, description="one number, or one for each input")
    bias_scaling: float = 0.0
    weights: str | None = Field(default=None, description="a safetensors file of saved weights instead of drawing them")
    dtype: DType = "float32"
    weight_storage: Literal["float16"] | None = Field(
        default=None, description="float16: weights are rounded to it, which makes a large network twice as fast"
    )
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    gradients: bool = Field(default=False, description="compute with torch, so that gradients pass through")

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        drawing = {
            "nodes", "topology", "spectral_radius", "connectivity", "connections_per_node", "weight_distribution",
            "leak_rate", "input_connectivity", "input_distribution", "input_scaling", "bias_scaling", "seed",
        }  # fmt: skip
        fields = type(self).model_fields
        given = sorted(name for name in drawing if getattr(self, name) != fields[name].default)
        if self.weights is not None and given:
            raise ValueError(f"the file in `weights` decides about {', '.join(given)}; remove them")
        if self.weights is None and self.nodes is None:
            raise ValueError("nodes is missing: how many nodes shall the network have?")
        self.topology.check(self.nodes, {name: getattr(self, name) for name in self.model_fields_set})
        if self.topology.radius == 0:
            # There is nothing to scale: a resolved configuration that said otherwise would be refused.
            object.__setattr__(self, "spectral_radius", None)
        if isinstance(self.leak_rate, tuple) and self.leak_rate[0] > self.leak_rate[1]:
            raise ValueError(f"leak_rate {list(self.leak_rate)} must be [lowest, highest]")
        if self.nodes and self.connections_per_node and self.connections_per_node > self.nodes:
            raise ValueError(f"connections_per_node {self.connections_per_node} is more than the {self.nodes} nodes")
        if self.connectivity is not None and self.connections_per_node is not None:
            raise ValueError("give connectivity or connections_per_node, not both")
        if self.weight_storage is not None and self.dtype != "float32":
            raise ValueError(f"weight_storage {self.weight_storage} goes with dtype float32, not {self.dtype}")
        if self.gradients and self.nonidealities.rounds:
            raise ValueError("no gradient passes a converter: remove gradients, or bits from nonidealities")
        return self

    @property
    def ideal_label(self) -> str:
        """ESN(nodes)."""
        return f"ESN({self.nodes})" if self.nodes else f"ESN({Path(self.weights or '').stem})"

    def for_inputs(self, inputs: int) -> Self:
        """This configuration for a task with `inputs` channels; `input_scaling` and the weights must fit too."""
        if self.input_mask is None and isinstance(self.input_scaling, list) and len(self.input_scaling) != inputs:
            raise ConfigurationError(
                f"input_scaling has {len(self.input_scaling)} numbers, the task has {inputs} input channels"
            )
        config = super().for_inputs(inputs)
        if config.nonidealities.loop.weight_bits is not None:
            to_weight_bits(config._weights(), config.nonidealities.loop)
        return config

    def build(self) -> Esn:
        """Draw or load the weights and lay them out."""
        return Esn(
            self._weights(),
            activation=self.activation,
            dtype=self.dtype,
            device=self.device,
            gradients=self.gradients,
            weight_storage=self.weight_storage,
            nonidealities=self.seeded_nonidealities(),
            out_of_range=self.out_of_range,
        )

    def _weights(self) -> EsnWeights:
        weights_module = _import_weights()
        if self.weights is not None:
            weights = weights_module.EsnWeights.load(self.weights)
            if self.inputs is not None and self.inputs != weights.inputs:
                raise ConfigurationError(
                    f"the task has {self.inputs} input channels, but the weights in {self.weights} take "
                    f"{weights.inputs}"
                )
            return weights
        return weights_module.draw_weights(
            self.nodes,
            self.required_inputs(),
            seed=self.seed,
            topology=self.topology,
            spectral_radius=self.spectral_radius,
            connectivity=self.connectivity,
            connections_per_node=self.connections_per_node,
            distribution=self.weight_distribution,
            input_connectivity=self.input_connectivity,
            input_distribution=self.input_distribution,
            input_scaling=self.input_scaling,
            bias_scaling=self.bias_scaling,
            leak=self.leak_rate,
        )


class Esn(SimulatedReservoir):
    """An echo state network with given weights.

    On the CPU a numba kernel drives it. Torch does where gradients or a GPU are asked for, or where numba is
    not installed; the provenance says which. A torch network is differentiable, a numba one is not.

    Parameters
    ----------
    weights
        `EsnWeights`, drawn, loaded or from your own arrays (`EsnWeights.from_arrays`).
    weight_storage
        "float16" rounds the weights to it and, in the numba kernel, keeps them so.
    """

    def __init__(
        self,
        weights: EsnWeights,
        *,
        activation: Activation = "tanh",
        dtype: DType = "float32",
        device: str = "cpu",
        gradients: bool = False,
        weight_storage: Literal["float16"] | None = None,
        nonidealities: Nonidealities = IDEAL_DEVICE,
        out_of_range: OutOfRange = "error",
    ) -> None:
        self.activation: Activation = activation
        self._dtype: DType = dtype
        self._weight_storage = weight_storage
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
            state_range=(-1.0, 1.0) if activation == "tanh" else None,
            snapshot=True,
            settable=True,
            programmable=True,
            deterministic=True,
            differentiable=torch_is_needed,
            identity=self._identity(),
        )
        super().__init__(spec, self._new_engine(), nonidealities=nonidealities, out_of_range=out_of_range)

    def _stored(self, weights: EsnWeights) -> EsnWeights:
        """The weights as the device holds them."""
        weights = to_weight_bits(weights, self._loop_config)
        return weights if self._weight_storage is None else rounded(weights, to_float16)

    def _new_engine(self) -> NumbaEngine | TorchEngine:
        if self.native == "torch":
            check_device(self.device)
            from reservoir_hw.backends.simulated.esn import torch_loop

            tensors = torch_loop.prepare(self.weights, self._dtype, self.device)
            return TorchEngine(
                lambda u, state, loop: torch_loop.run(tensors, u, state, self.activation, loop),
                self.weights.nodes, self._dtype, self.device,
            )  # fmt: skip
        from reservoir_hw.backends.simulated.esn import cpu_loop

        prepared = cpu_loop.prepare(self.weights, self._dtype, storage=self._weight_storage)
        return NumbaEngine(
            lambda u, state, out, loop: cpu_loop.run(prepared, u, state, self.activation, out, loop),
            self.weights.nodes, self._dtype,
        )  # fmt: skip

    def _identity(self) -> Identity:
        content = f"{self.activation} {self.weights.digest()}"
        return Identity(vendor="reservoir_hw", model="esn", simulated=True, content=content)

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        module = _import_weights()
        known = {"W", "W_in", "bias", "leak"}
        if not {"W", "W_in"} <= set(weights) <= known:
            raise ConfigurationError(f"upload takes W and W_in, and bias and leak if wanted, not {sorted(weights)}")
        new = module.EsnWeights.from_arrays(**weights)
        if (new.nodes, new.inputs) != (self.weights.nodes, self.weights.inputs):
            raise ConfigurationError(
                f"upload: the new weights are for {new.nodes} nodes and {new.inputs} inputs, "
                f"the network has {self.weights.nodes} and {self.weights.inputs}"
            )
        self.weights = self._stored(new)
        self._engine = self._new_engine()
        return self._with_identity(self._identity())

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "spectral_scale": self.weights.spectral_scale}


def _import_weights() -> Any:
    try:
        from reservoir_hw.networks import weights
    except ImportError as error:
        raise MissingExtra(f"a simulated esn needs scipy: pip install 'reservoir-hw[sim]' ({error})") from error
    return weights
