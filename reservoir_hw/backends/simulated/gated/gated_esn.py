"""The simulated gated echo state network as a reservoir."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from reservoir_hw.backends.simulated.engines import NumbaEngine, TorchEngine, check_device
from reservoir_hw.backends.simulated.esn.esn import Distribution, Probability
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, LoopNonidealities, Nonidealities
from reservoir_hw.backends.simulated.nonidealities.rounding import to_weight_bits
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig, SimulatedReservoir, have_numba
from reservoir_hw.core.arrays import to_numpy
from reservoir_hw.core.errors import ConfigurationError, MissingExtra, NotSupported, ShapeError
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec

if TYPE_CHECKING:
    from reservoir_hw.networks.gated_weights import GatedWeights

# Gate activations that are computed at once.
_CHUNK = 1 << 20

Scaling = float | list[float]
Radius = NonNegativeFloat | None


class GatedEsnConfig(SimulatedConfig):
    """Gated echo state network with untrained gates (Di Sarli, Gallicchio & Micheli 2022, eq. 6).

    r = σ(W^r_in u + W^r x), z = σ(W^z_in u + W^z x), h = tanh(W_in u + W (r ⊙ x)), x' = z ⊙ x + (1 - z) ⊙ h.
    """

    kind: Literal["gated_esn"]
    nodes: PositiveInt | None = Field(default=None, description="needed unless `weights` names a file")
    spectral_radius: Radius = Field(default=0.9, description="of W; 0: no recurrence, null: as it was drawn")
    reset_spectral_radius: Radius = Field(default=0.9, description="of W^r, likewise")
    update_spectral_radius: Radius = Field(default=0.9, description="of W^z, likewise")
    connectivity: Probability | None = Field(default=None, description="probability of each recurrent weight")
    connections_per_node: PositiveInt | None = Field(default=None, description="exact number instead of connectivity")
    weight_distribution: Distribution = Field(default="uniform", description="bernoulli: random sign")
    input_connectivity: Probability = 1.0
    input_distribution: Distribution = "uniform"
    input_scaling: Scaling = Field(default=1.0, description="of W_in: one number, or one for each input")
    reset_input_scaling: Scaling = Field(default=1.0, description="of W^r_in, likewise")
    update_input_scaling: Scaling = Field(default=1.0, description="of W^z_in, likewise")
    bias_scaling: float = Field(default=0.0, description="of a random bias in h; eq. 6 has none")
    reset_bias: float = Field(default=0.0, description="added inside the σ of r; eq. 6 has none")
    update_bias: float = Field(
        default=0.0, description="added inside the σ of z, so that z rests at σ(update_bias); eq. 6 has none"
    )
    weights: str | None = Field(default=None, description="a safetensors file of saved weights instead of drawing them")
    dtype: DType = "float32"
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    gradients: bool = Field(default=False, description="compute with torch, so that gradients pass through")

    @model_validator(mode="after")
    def _one_source_of_weights(self) -> Self:
        fields = type(self).model_fields
        given = sorted(name for name in _DRAWING | {"nodes", "seed"} if getattr(self, name) != fields[name].default)
        if self.weights is not None and given:
            raise ValueError(f"the file in `weights` decides about {', '.join(given)}; remove them")
        if self.weights is None and self.nodes is None:
            raise ValueError("nodes is missing: how many nodes shall the network have?")
        if self.nodes and self.connections_per_node and self.connections_per_node > self.nodes:
            raise ValueError(f"connections_per_node {self.connections_per_node} is more than the {self.nodes} nodes")
        if self.connectivity is not None and self.connections_per_node is not None:
            raise ValueError("give connectivity or connections_per_node, not both")
        if self.gradients and self.nonidealities.rounds:
            raise ValueError("no gradient passes a converter: remove gradients, or bits from nonidealities")
        return self

    @property
    def ideal_label(self) -> str:
        """Gated ESN(nodes)."""
        return f"Gated ESN({self.nodes or Path(self.weights or '').stem})"

    def for_inputs(self, inputs: int) -> Self:
        """This configuration for a task with `inputs` channels; the input scalings and the weights must fit too."""
        for name in ("input_scaling", "reset_input_scaling", "update_input_scaling"):
            scaling = getattr(self, name)
            if self.input_mask is None and isinstance(scaling, list) and len(scaling) != inputs:
                raise ConfigurationError(f"{name} has {len(scaling)} numbers, the task has {inputs} input channels")
        config = super().for_inputs(inputs)
        if config.nonidealities.loop.weight_bits is not None:
            _to_weight_bits(config._weights(), config.nonidealities.loop)
        return config

    def build(self) -> GatedEsn:
        """Draw or load the weights and lay them out."""
        return GatedEsn(
            self._weights(),
            dtype=self.dtype,
            device=self.device,
            gradients=self.gradients,
            nonidealities=self.seeded_nonidealities(),
            out_of_range=self.out_of_range,
        )

    def _weights(self) -> GatedWeights:
        module = _import_weights()
        if self.weights is None:
            options = {name: getattr(self, name) for name in _DRAWING - {"weight_distribution"}}
            inputs = self.required_inputs()
            return module.draw_gated_weights(
                self.nodes, inputs, seed=self.seed, distribution=self.weight_distribution, **options
            )
        weights = module.GatedWeights.load(self.weights)
        if self.inputs is not None and self.inputs != weights.inputs:
            raise ConfigurationError(
                f"the task has {self.inputs} input channels, but the weights in {self.weights} take {weights.inputs}"
            )
        return weights


# What is decided by drawing weights, beside nodes and seed.
_DRAWING = {
    "spectral_radius", "reset_spectral_radius", "update_spectral_radius", "connectivity", "connections_per_node",
    "weight_distribution", "input_connectivity", "input_distribution", "input_scaling", "reset_input_scaling",
    "update_input_scaling", "bias_scaling", "reset_bias", "update_bias",
}  # fmt: skip


@dataclass(frozen=True)
class GateActivity:
    """Mean, standard deviation and maximum of a gate, over sequences, time and nodes."""

    mean: float
    std: float
    max: float


@dataclass(frozen=True)
class GateStatistics:
    """How much the gates are used (Di Sarli et al. 2022, Table 3)."""

    reset: GateActivity
    update: GateActivity

    @property
    def z_max(self) -> float:
        """The largest activation of the update gate, as Lemma 1 needs it: max_t ‖z(t)‖_∞.

        A node keeps its state for some 1 / (1 - z) steps: with z_max near 1 a network may forget too slowly for a
        readout that is trained after one start and used after another.
        """
        return self.update.max


class GatedEsn(SimulatedReservoir):
    """A gated echo state network with given weights.

    On the CPU a numba kernel drives it. Torch does where gradients or a GPU are asked for, or where numba is
    not installed; the provenance says which. A torch network is differentiable, a numba one is not.

    Parameters
    ----------
    weights
        `GatedWeights`, drawn, loaded or from your own arrays (`GatedWeights.from_arrays`, whose names `upload` takes).
    """

    def __init__(
        self,
        weights: GatedWeights,
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
            state_range=(-1.0, 1.0),
            snapshot=True,
            settable=True,
            programmable=True,
            deterministic=True,
            differentiable=torch_is_needed,
            identity=self._identity(),
        )
        super().__init__(spec, self._new_engine(), nonidealities=nonidealities, out_of_range=out_of_range)

    def gate_statistics(self, u: Any) -> GateStatistics:
        """Drive the network from rest with `u` (batch, time, inputs), and look at its gates.

        r_t and z_t are computed in float64 from the states x_{t-1} that the network went through. Afterwards it is in
        the state to which `reset` and `run` would have brought it. Raises as these do, and `NotSupported` where
        `nonidealities.readout` hides the states.
        """
        if self._nonidealities.readout != IDEAL_DEVICE.readout:
            raise NotSupported(
                "gate_statistics: with nonidealities.readout the states that are read are not those that the gates "
                "see; leave readout out"
            )
        given = self._to_native(u, "inputs")
        if given.ndim != 3 or given.shape[1] == 0:
            raise ShapeError(f"gate_statistics takes inputs (batch, time, inputs), not {tuple(given.shape)}")
        self.reset(len(given))
        states = to_numpy(self.run(given), self.spec.numpy_dtype, "states")
        counted = self.counters.clipped
        given = self._in_range(given)
        self.counters.clipped = counted
        given = to_numpy(self._converted(given), self.spec.numpy_dtype, "inputs")
        before = np.concatenate([np.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
        r, z = _Activity(), _Activity()
        chunk = max(1, _CHUNK // (len(given) * self.weights.nodes))
        for t in range(0, given.shape[1], chunk):
            reset, update = self.weights.gates(given[:, t : t + chunk], before[:, t : t + chunk])
            r.add(reset)
            z.add(update)
        return GateStatistics(reset=r.result(), update=z.result())

    def _stored(self, weights: GatedWeights) -> GatedWeights:
        """The weights as the device holds them."""
        return _to_weight_bits(weights, self._loop_config)

    def _new_engine(self) -> NumbaEngine | TorchEngine:
        if self.native == "torch":
            check_device(self.device)
            from reservoir_hw.backends.simulated.gated import torch_loop

            tensors = torch_loop.prepare(self.weights, self._dtype, self.device)
            return TorchEngine(partial(torch_loop.run, tensors), self.weights.nodes, self._dtype, self.device)
        from reservoir_hw.backends.simulated.gated import cpu_loop

        prepared = cpu_loop.prepare(self.weights, self._dtype)
        return NumbaEngine(partial(cpu_loop.run, prepared), self.weights.nodes, self._dtype)

    def _identity(self) -> Identity:
        return Identity(vendor="reservoir_hw", model="gated_esn", simulated=True, content=self.weights.digest())

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        new = _import_weights().GatedWeights.from_arrays(weights)
        if (new.nodes, new.inputs) != (self.weights.nodes, self.weights.inputs):
            raise ConfigurationError(
                f"upload: the new weights are for {new.nodes} nodes and {new.inputs} inputs, "
                f"the network has {self.weights.nodes} and {self.weights.inputs}"
            )
        self.weights = self._stored(new)
        self._engine = self._new_engine()
        return self._with_identity(self._identity())

    def _settings(self) -> dict[str, Any]:
        scales = {name: part.spectral_scale for name, part in self.weights.parts().items()}
        return {**super()._settings(), "spectral_scale": scales}


def _to_weight_bits(weights: GatedWeights, loop: LoopNonidealities) -> GatedWeights:
    return type(weights)(**{name: to_weight_bits(part, loop) for name, part in weights.parts().items()})


class _Activity:
    """Sums over the activations of one gate."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares, self._max = 0, 0.0, 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        self._count += values.size
        self._sum += float(values.sum())
        self._squares += float(np.square(values).sum())
        self._max = max(self._max, float(values.max()))

    def result(self) -> GateActivity:
        mean = self._sum / self._count
        return GateActivity(mean=mean, std=max(0.0, self._squares / self._count - mean**2) ** 0.5, max=self._max)


def _import_weights() -> Any:
    try:
        from reservoir_hw.networks import gated_weights
    except ImportError as error:
        raise MissingExtra(f"a simulated gated_esn needs scipy: pip install 'reservoir-hw[sim]' ({error})") from error
    return gated_weights
