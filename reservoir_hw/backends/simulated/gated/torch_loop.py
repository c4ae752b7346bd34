"""The time loop of the gated echo state network in torch: for gradients, for a GPU, and where there is no numba."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numpy.typing import DTypeLike
from torch import Tensor

from reservoir_hw.backends.simulated.esn import torch_loop
from reservoir_hw.backends.simulated.esn.torch_loop import TorchWeights
from reservoir_hw.backends.simulated.kernels.impairment import impaired_at
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.networks.weights import GatedWeights


class GatedTorchWeights(NamedTuple):
    """Weights on one device in one precision; made by `prepare`, or from tensors that require gradients."""

    state: TorchWeights
    reset: TorchWeights
    update: TorchWeights


def prepare(
    weights: GatedWeights, dtype: DTypeLike = "float32", device: torch.device | str = "cpu"
) -> GatedTorchWeights:
    """Copy the weights to a device, in float32 or float64; CSR stays CSR."""
    return GatedTorchWeights(
        **{name: torch_loop.prepare(part, dtype, device) for name, part in weights.parts().items()}
    )


def run(weights: GatedTorchWeights, u: Tensor, state: Tensor, loop: LoopTerms | None = None) -> tuple[Tensor, Tensor]:
    """Drive the network with `u` (batch, time, inputs) from `state` (batch, nodes): Di Sarli et al. 2022, eq. 6.

    Returns the states (batch, time, nodes), row t after input t, and the final state (batch, nodes); `loop` acts on
    every new state. Nothing is written in place, so that gradients flow to `u`, `state`, and to the weights that
    require them (of a sparse CSR matrix: to everything but W).
    """
    states = []
    with torch.autocast(u.device.type, enabled=False):
        for step in range(u.shape[1]):
            now = torch_loop.of_step(u, step)
            r = torch.sigmoid(_product(weights.reset, now, state))
            z = torch.sigmoid(_product(weights.update, now, state))
            h = torch.tanh(_product(weights.state, now, r * state))
            state = impaired_at(loop, z * state + (1 - z) * h, state, step)
            states.append(state)
    return torch.stack(states, 1), state


def _product(weights: TorchWeights, u: Tensor, state: Tensor) -> Tensor:
    drive = torch.addmm(weights.bias, u, weights.W_in.T)
    if weights.W.layout == torch.sparse_csr:
        return drive + (weights.W @ state.T).T
    return torch.addmm(drive, state, weights.W.T)
