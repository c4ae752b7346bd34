"""The simulated echo state network as a reservoir."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from reservoir_hw import networks
from reservoir_hw.backends.simulated.engines import Activation, ArrayLoop, EngineName, JointLoop, TensorLoop
from reservoir_hw.backends.simulated.network import (
    NetworkConfig,
    Scaling,
    SimulatedNetwork,
    WeightStorage,
)
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities
from reservoir_hw.backends.simulated.nonidealities.noise import ROUNDINGS
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.spec import DType, Identity
from reservoir_hw.networks.random_matrices import Distribution
from reservoir_hw.networks.topologies import Random, Topology

Rate = Annotated[float, Field(gt=0, le=1)]


class EsnConfig(NetworkConfig):
    """Echo state network, s_t = (1-a) ⊙ s_(t-1) + a ⊙ f(W s_(t-1) + W_in u_t + b) (Jaeger et al. 2007)."""

    kind: Literal["esn"]
    leak_rate: Rate | tuple[Rate, Rate] = Field(
        default=1.0, description="a; a pair is a range from which each node draws its own"
    )
    activation: Activation = "tanh"
    topology: Topology = Field(
        default=Random(), description="which nodes are linked: a name, or a mapping with `kind:`"
    )
    spectral_radius: PositiveFloat | None = Field(default=0.9, description="null: W as it was drawn")
    weight_distribution: Distribution | None = Field(
        default=None, description="of the weights that the topology does not fix; by default uniform"
    )
    input_scaling: Scaling = Field(default=1.0, description="one number, or one for each input")
    bias_scaling: float = 0.0
    weight_storage: WeightStorage | None = Field(
        default=None,
        description="float16, bfloat16: weights are rounded to it; float16 makes a large network twice as fast, "
        "bfloat16 does on a GPU only",
    )

    drawing = (
        "topology", "spectral_radius", "connectivity", "connections_per_node", "weight_distribution", "leak_rate",
        "input_connectivity", "input_distribution", "input_scaling", "bias_scaling",
    )  # fmt: skip

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.topology.radius == 0:
            # There is nothing to scale: a resolved configuration that said otherwise would be refused.
            object.__setattr__(self, "spectral_radius", None)
        if isinstance(self.leak_rate, tuple) and self.leak_rate[0] > self.leak_rate[1]:
            raise ValueError(f"leak_rate {list(self.leak_rate)} must be [lowest, highest]")
        if self.weight_storage is not None and self.dtype != "float32":
            raise ValueError(f"weight_storage {self.weight_storage} goes with dtype float32, not {self.dtype}")
        return self

    @property
    def ideal_name(self) -> str:
        """ESN(nodes)."""
        return f"ESN({self.nodes})" if self.nodes else f"ESN({Path(self.weights or '').stem})"

    def build(self) -> Esn:
        """Draw or load the weights and lay them out."""
        own = {"activation": self.activation, "weight_storage": self.weight_storage}
        return Esn(self.drawn_or_loaded(), **own, **self.options())

    def _topology(self) -> Topology:
        return self.topology

    def _draw(self, *sizes: int, **options: Any) -> networks.EsnWeights:
        return networks.draw_weights(*sizes, **options)

    def _load(self, path: str) -> networks.EsnWeights:
        return networks.EsnWeights.load(path)


class Esn(SimulatedNetwork):
    """An echo state network with given weights.

    Parameters
    ----------
    weights
        `EsnWeights`, drawn, loaded or from your own arrays (`EsnWeights.from_arrays`).
    weight_storage
        "float16" rounds the weights to it and keeps them so in the numba and Triton kernels; "bfloat16" does in the
        Triton kernels, elsewhere the rounded weights are kept as float32.
    engine
        "numba", "torch", "cuda_graphs" or "triton"; without one `engines.py` chooses, and the provenance says
        which. With gradients it is torch.
    """

    kind = "esn"

    def __init__(
        self,
        weights: networks.EsnWeights,
        *,
        activation: Activation = "tanh",
        dtype: DType = "float32",
        device: str = "cpu",
        gradients: bool = False,
        engine: EngineName | None = None,
        weight_storage: WeightStorage | None = None,
        nonidealities: Nonidealities = IDEAL_DEVICE,
        out_of_range: OutOfRange = "error",
    ) -> None:
        if activation not in get_args(Activation):
            raise ConfigurationError(
                f"unknown activation {activation!r}: choose one of {', '.join(get_args(Activation))}"
            )
        self.activation: Activation = activation
        self._weight_storage = weight_storage
        if activation != "tanh":
            self.state_range = None
        super().__init__(
            weights,
            dtype=dtype,
            device=device,
            gradients=gradients,
            engine=engine,
            nonidealities=nonidealities,
            out_of_range=out_of_range,
        )

    def _stored(self, weights: networks.EsnWeights) -> networks.EsnWeights:
        """The weights as the device holds them."""
        weights = super()._stored(weights)
        return weights if self._weight_storage is None else weights.rounded(ROUNDINGS[self._weight_storage])

    def _array_loop(self) -> ArrayLoop:
        from reservoir_hw.backends.simulated.esn import cpu_loop

        # There is no kernel that reads bfloat16: the rounded weights are kept as float32.
        storage = None if self._weight_storage == "bfloat16" else self._weight_storage
        prepared = cpu_loop.prepare(self.weights, self._dtype, storage=storage)
        return partial(cpu_loop.run, prepared, activation=self.activation)

    def _tensor_loop(self) -> TensorLoop:
        from reservoir_hw.backends.simulated.esn import torch_loop

        tensors = torch_loop.prepare(self.weights, self._dtype, self.device)
        return partial(torch_loop.run, tensors, activation=self.activation)

    def _triton_loop(self, weights: Sequence[networks.EsnWeights]) -> JointLoop:
        from reservoir_hw.backends.simulated.esn import triton_loop

        stacked = triton_loop.prepare(weights, self.device, self._weight_storage)
        return partial(triton_loop.run_members, stacked, activation=self.activation)

    def joint_loop(self, members: Sequence[Any]) -> JointLoop | None:
        """Triton's, or for dense weights one of batched products in torch; neither computes gradients."""
        if any(member.activation != self.activation or member.spec.differentiable for member in members):
            return None
        weights = [member.weights for member in members]
        loop = super().joint_loop(members)
        if loop is None and all(isinstance(one.W, np.ndarray) for one in weights):
            from reservoir_hw.backends.simulated.esn import torch_loop

            products = torch_loop.prepare_members(weights, self._dtype, self.device)
            loop = partial(torch_loop.run_members, products, activation=self.activation)
        return loop

    def _identity(self) -> Identity:
        content = f"{self.activation} {self.weights.digest()}"
        return Identity(vendor="reservoir_hw", model="esn", simulated=True, content=content)

    def _given_weights(self, arrays: Mapping[str, Any]) -> networks.EsnWeights:
        if not {"W", "W_in"} <= set(arrays) <= {"W", "W_in", "bias", "leak"}:
            raise ConfigurationError(f"upload takes W and W_in, and bias and leak if wanted, not {sorted(arrays)}")
        return networks.EsnWeights.from_arrays(**arrays)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "spectral_scale": self.weights.spectral_scale}
