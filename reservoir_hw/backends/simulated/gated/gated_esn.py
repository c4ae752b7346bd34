"""The simulated gated echo state network as a reservoir."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat

from reservoir_hw import networks
from reservoir_hw.backends.simulated.engines import ArrayLoop, JointLoop, TensorLoop
from reservoir_hw.backends.simulated.network import NetworkConfig, Scaling, SimulatedNetwork
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE
from reservoir_hw.core.arrays import to_numpy
from reservoir_hw.core.errors import NotSupported, ShapeError
from reservoir_hw.core.spec import Identity
from reservoir_hw.networks.random_matrices import Distribution

# Gate activations that are computed at once.
_CHUNK = 1 << 20

Radius = NonNegativeFloat | None


class GatedEsnConfig(NetworkConfig):
    """Gated echo state network with untrained gates (Di Sarli, Gallicchio & Micheli 2022, eq. 6).

    r = σ(W^r_in u + W^r x), z = σ(W^z_in u + W^z x), h = tanh(W_in u + W (r ⊙ x)), x' = z ⊙ x + (1 - z) ⊙ h.
    """

    kind: Literal["gated_esn"]
    spectral_radius: Radius = Field(default=0.9, description="of W; 0: no recurrence, null: as it was drawn")
    reset_spectral_radius: Radius = Field(default=0.9, description="of W^r, likewise")
    update_spectral_radius: Radius = Field(default=0.9, description="of W^z, likewise")
    weight_distribution: Distribution = Field(default="uniform", description="bernoulli: random sign")
    input_scaling: Scaling = Field(default=1.0, description="of W_in: one number, or one for each input")
    reset_input_scaling: Scaling = Field(default=1.0, description="of W^r_in, likewise")
    update_input_scaling: Scaling = Field(default=1.0, description="of W^z_in, likewise")
    bias_scaling: float = Field(default=0.0, description="of a random bias in h; eq. 6 has none")
    reset_bias: float = Field(default=0.0, description="added inside the σ of r; eq. 6 has none")
    update_bias: float = Field(
        default=0.0, description="added inside the σ of z, so that z rests at σ(update_bias); eq. 6 has none"
    )

    matrices = 3
    input_scalings = ("input_scaling", "reset_input_scaling", "update_input_scaling")
    drawing = (
        "spectral_radius", "reset_spectral_radius", "update_spectral_radius", "connectivity", "connections_per_node",
        "weight_distribution", "input_connectivity", "input_distribution", *input_scalings, "bias_scaling",
        "reset_bias", "update_bias",
    )  # fmt: skip

    @property
    def ideal_name(self) -> str:
        """Gated ESN(nodes)."""
        return f"Gated ESN({self.nodes or Path(self.weights or '').stem})"

    def build(self) -> GatedEsn:
        """Draw or load the weights and lay them out."""
        return GatedEsn(self.drawn_or_loaded(), **self.options())

    def _draw(self, *sizes: int, **options: Any) -> networks.GatedWeights:
        return networks.draw_gated_weights(*sizes, **options)

    def _load(self, path: str) -> networks.GatedWeights:
        return networks.GatedWeights.load(path)


@dataclass(frozen=True)
class GateActivity:
    """Mean, standard deviation and maximum of a gate, over sequences, time and nodes."""

    mean: float
    std: float
    max: float


@dataclass(frozen=True)
class GateStatistics:
    """How much the gates are used (Di Sarli et al. 2022, Table 3).

    `update.max` is their z_max, max_t ‖z(t)‖_∞ (Lemma 1). A node keeps its state for some 1 / (1 - z) steps: with z_max
    near 1 a network may forget too slowly for a readout that is trained after one start and used after another.
    """

    reset: GateActivity
    update: GateActivity


class GatedEsn(SimulatedNetwork):
    """A gated echo state network with given weights.

    Parameters
    ----------
    weights
        `GatedWeights`, drawn, loaded or from your own arrays (`GatedWeights.from_arrays`, whose names `upload` takes).
    engine
        "numba", "torch", "cuda_graphs" or "triton"; without one `engines.py` chooses, and the provenance says
        which. With gradients it is torch.
    """

    kind = "gated_esn"

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
        given = to_numpy(u, self.spec.numpy_dtype, "inputs")
        if given.ndim != 3 or given.shape[1] == 0:
            raise ShapeError(f"gate_statistics takes inputs (batch, time, inputs), not {tuple(given.shape)}")
        self.reset(len(given))
        states = to_numpy(self.run(given), self.spec.numpy_dtype, "states")
        counted = self.counters.clipped
        given = self.inputs_for_device(given)
        self.counters.clipped = counted
        given = to_numpy(self._converted(given), self.spec.numpy_dtype, "inputs")
        before = np.concatenate([np.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
        # Of each gate the sum and the sum of squares, and its maximum.
        sums, highest = np.zeros((2, 2)), np.zeros(2)
        chunk = max(1, _CHUNK // (len(given) * self.weights.nodes))
        for t in range(0, given.shape[1], chunk):
            for gate, z in enumerate(self.weights.gates(given[:, t : t + chunk], before[:, t : t + chunk])):
                sums[gate] += z.sum(), np.square(z).sum()
                highest[gate] = max(highest[gate], z.max())
        means, squares = sums.T / states.size
        deviations = np.sqrt(np.maximum(0.0, squares - means**2))
        found = np.stack([means, deviations, highest], axis=1).tolist()
        return GateStatistics(*(GateActivity(*gate) for gate in found))

    def _array_loop(self) -> ArrayLoop:
        from reservoir_hw.backends.simulated.gated import cpu_loop

        return partial(cpu_loop.run, cpu_loop.prepare(self.weights, self._dtype))

    def _tensor_loop(self) -> TensorLoop:
        from reservoir_hw.backends.simulated.gated import torch_loop

        return partial(torch_loop.run, torch_loop.prepare(self.weights, self._dtype, self.device))

    def _triton_loop(self, weights: Sequence[networks.GatedWeights]) -> JointLoop:
        from reservoir_hw.backends.simulated.gated import triton_loop

        return partial(triton_loop.run_members, triton_loop.prepare(weights, self.device))

    def _identity(self) -> Identity:
        return Identity(vendor="reservoir_hw", model="gated_esn", simulated=True, content=self.weights.digest())

    def _given_weights(self, arrays: Mapping[str, np.ndarray]) -> networks.GatedWeights:
        return networks.GatedWeights.from_arrays(arrays)

    def _settings(self) -> dict[str, Any]:
        scales = {name: part.spectral_scale for name, part in self.weights.parts().items()}
        return {**super()._settings(), "spectral_scale": scales}
