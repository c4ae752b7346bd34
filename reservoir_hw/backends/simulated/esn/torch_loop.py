"""The time loop of the simulated echo state network in torch: for gradients, for a GPU, and where there is no numba.

s_t = (1-a) ⊙ s_{t-1} + a ⊙ f(W s_{t-1} + W_in u_t + b) (Jaeger et al. 2007, eq. 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike
from scipy.sparse import csr_array
from torch import Tensor

from reservoir_hw.backends.simulated.engines import Activation
from reservoir_hw.backends.simulated.kernels.impairment import impaired_at, stack_terms
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.networks.weights import EsnWeights

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
}


@dataclass(frozen=True, eq=False)
class TorchWeights:
    """Weights on one device in one precision; made by `prepare`, or from tensors that require gradients.

    `W` (nodes × nodes), strided or sparse CSR, spectral scale included; `W_in` (nodes × inputs); `bias` and
    `leak` (nodes,). `leak` is None where every rate is 1: that step is left out.
    """

    W: Tensor
    W_in: Tensor
    bias: Tensor
    leak: Tensor | None


@torch.inference_mode(False)
def prepare(weights: EsnWeights, dtype: DTypeLike = "float32", device: torch.device | str = "cpu") -> TorchWeights:
    """Copy the weights to a device, in float32 or float64; CSR stays CSR.

    `dtype` by its numpy name.
    """
    kind = np.dtype(dtype)

    def tensor(array: Any) -> Tensor:
        return torch.tensor(array.astype(kind), device=device)

    W = weights.recurrent()
    if isinstance(W, csr_array):
        with warnings.catch_warnings():
            # torch warns once per process that its CSR tensors are in beta; the tests cover what is used.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            recurrent = torch.sparse_csr_tensor(
                torch.tensor(W.indptr, device=device),
                torch.tensor(W.indices, device=device),
                tensor(W.data),
                size=(weights.nodes, weights.nodes),
                check_invariants=True,
            )
    else:
        recurrent = tensor(W)
    return TorchWeights(
        W=recurrent,
        W_in=tensor(weights.W_in),
        bias=tensor(weights.bias),
        leak=tensor(weights.leak) if (weights.leak != 1.0).any() else None,
    )


def run(
    weights: TorchWeights, u: Tensor, state: Tensor, loop: LoopTerms | None = None, *, activation: Activation = "tanh"
) -> tuple[Tensor, Tensor]:
    """Drive the network with `u` (batch, time, inputs) from `state` (batch, nodes); `loop` acts on every new state.

    Returns the states (batch, time, nodes), row t after input t, and the final state (batch, nodes).
    Nothing is written in place, so that gradients flow to `u`, `state`, and to the weights that require
    them (of a sparse CSR matrix: to everything but W). Without gradients the result is written into one
    preallocated tensor.
    """
    function = _ACTIVATIONS[activation]
    batch, steps, _ = u.shape
    sparse = weights.W.layout == torch.sparse_csr
    # Sparse products want the nodes first: the loop runs on transposed states, the result is a view.
    shape, axis = ((steps, len(weights.bias), batch), 0) if sparse else ((batch, steps, len(weights.bias)), 1)
    tensors = (weights.W, weights.W_in, weights.bias, weights.leak, u, state)
    followed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    block = None if followed else u.new_empty(shape)
    # The states are of the dtype that was declared, whatever the caller's own model computes in.
    with torch.autocast(u.device.type, enabled=False):
        every = (_sparse_states if sparse else _dense_states)(weights, u, state, loop, function)
        if block is None:
            block = torch.stack(list(every), axis)
        else:
            for step, now in enumerate(every):
                block.select(axis, step).copy_(now)
    states = block.permute(2, 0, 1) if sparse else block
    return states, states[:, -1]


def prepare_members(
    members: Sequence[EsnWeights], dtype: DTypeLike = "float32", device: torch.device | str = "cpu"
) -> TorchWeights:
    """The dense weights of a population, networks of one shape, each tensor with an axis for the members in front."""
    parts = [prepare(weights, dtype, device) for weights in members]
    leaky = any(part.leak is not None for part in parts)
    return TorchWeights(
        W=torch.stack([part.W for part in parts]),
        W_in=torch.stack([part.W_in for part in parts]),
        bias=torch.stack([part.bias for part in parts]),
        leak=torch.stack([torch.ones_like(p.bias) if p.leak is None else p.leak for p in parts]) if leaky else None,
    )


@torch.no_grad()
def run_members(
    weights: TorchWeights,
    u: Tensor,
    states: Tensor,
    loops: Sequence[LoopTerms | None] | None = None,
    *,
    activation: Activation = "tanh",
) -> tuple[Tensor, Tensor]:
    """Drive a population, a batched product per step; without gradients.

    `u` is (members or 1, batch, time, inputs): one for each member, or the same for all. `states` is
    (members, batch, nodes), `loops` has the terms of each member, or None where a member has none. Returns the states
    (members, batch, time, nodes) and the last of them, (members, batch, nodes).
    """
    function = _ACTIVATIONS[activation]
    members, nodes, _ = weights.W.shape
    _, batch, steps, _ = u.shape
    W, W_in, bias = weights.W.mT, weights.W_in.mT, weights.bias[:, None]
    leak = None if weights.leak is None else weights.leak[:, None]
    out = u.new_empty((members, batch, steps, nodes))
    terms = stack_terms(loops, u, tuple(out.shape))
    with torch.autocast(u.device.type, enabled=False):
        for step in range(steps):
            now = u[:, :, step].expand(members, -1, -1).contiguous()
            response = function(torch.baddbmm(torch.baddbmm(bias, now, W_in), states, W))
            response = response if leak is None else torch.lerp(states, response, leak)
            states = response if terms is None else terms.apply(response, states, step)
            out[:, :, step] = states
    return out, states


def _dense_states(
    weights: TorchWeights, u: Tensor, state: Tensor, loop: LoopTerms | None, function: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """(batch, nodes) after each step."""
    W, W_in, leak = weights.W.T, weights.W_in.T, weights.leak
    for step in range(u.shape[1]):
        # One product per step, also for the inputs: over several steps it would round by their number.
        drive = torch.addmm(weights.bias, of_step(u, step), W_in)
        response = function(torch.addmm(drive, state, W))
        response = response if leak is None else torch.lerp(state, response, leak)
        state = impaired_at(loop, response, state, step)
        yield state


def _sparse_states(
    weights: TorchWeights, u: Tensor, state: Tensor, loop: LoopTerms | None, function: Callable[[Tensor], Tensor]
) -> Iterator[Tensor]:
    """(nodes, batch) after each step."""
    bias = weights.bias[:, None]
    leak = None if weights.leak is None else weights.leak[:, None]
    columns = state.T
    for step in range(u.shape[1]):
        drive = torch.addmm(bias, weights.W_in, of_step(u, step).T)
        response = function(drive + weights.W @ columns)
        response = response if leak is None else torch.lerp(columns, response, leak)
        columns = impaired_at(loop, response.T, columns.T, step).T
        yield columns


def of_step(u: Tensor, step: int) -> Tensor:
    """(batch, inputs) of one step of (batch, time, inputs), in memory of its own.

    Products round by the strides and the alignment of their factors, which must not depend on the length of the run.
    """
    return u[:, step].clone(memory_format=torch.contiguous_format)
