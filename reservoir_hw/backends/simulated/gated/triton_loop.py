"""The time loop of the gated echo state network as Triton kernels, for one network or a population.

r = σ(W^r_in u + W^r x + b^r), z = σ(W^z_in u + W^z x + b^z), h = tanh(W_in u + W (r ⊙ x) + b),
x' = z ⊙ x + (1 - z) ⊙ h (Di Sarli et al. 2022, eq. 6).

As in `esn/triton_loop.py` all steps are one launch, and one kernel keeps its weights in registers, the other reads them
in every step. Matrices are stacked in the order reset, update, state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from reservoir_hw.backends.simulated.kernels.triton_functions import impaired, rational_tanh, sigmoid, weighted_sum
from reservoir_hw.backends.simulated.kernels.triton_launch import Form, StackedWeights, launch, stack
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.networks.weights import GatedWeights


def prepare(members: Sequence[GatedWeights], device: torch.device | str = "cuda") -> StackedWeights:
    """The weights of a population, of one shape, on a device; a single network is a population of one.

    They are kept as CSR where all recurrent matrices are, else dense.
    """
    return stack([[weights.reset, weights.update, weights.state] for weights in members], device)


def run_members(
    weights: StackedWeights,
    u: Tensor,
    states: Tensor,
    loops: Sequence[LoopTerms | None] | None = None,
    *,
    form: Form | None = None,
) -> tuple[Tensor, Tensor]:
    """Drive a population in one launch; shapes and types are those of `esn/triton_loop.run_members`."""
    return launch(_resident, _streamed, weights, u, states, loops, form, scratch=3)


# Neither the number of steps nor where the inputs lie may change how a step is compiled, and so how it rounds.
@triton.jit(do_not_specialize=["steps", "u_stride"], do_not_specialize_on_alignment=["u"])
def _resident(
    W, W_in, bias, u, vectors, out, keep, gain, limits, additive, nodes, inputs, batch, steps, u_stride,
    BLOCK: tl.constexpr, INPUTS: tl.constexpr, IMPAIRED: tl.constexpr,
):  # fmt: skip
    """One sequence of one member, with all weights in registers."""
    sequence, member = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, channels = tl.arange(0, BLOCK), tl.arange(0, INPUTS)
    inside, given = rows < nodes, channels < inputs
    square, wide = inside[:, None] & inside[None, :], inside[:, None] & given[None, :]
    reset = 3 * member * nodes + rows
    update, candidate = reset + nodes, reset + 2 * nodes
    w_r = tl.load(W + reset[:, None] * nodes + rows[None, :], mask=square, other=0.0)
    w_z = tl.load(W + update[:, None] * nodes + rows[None, :], mask=square, other=0.0)
    w_h = tl.load(W + candidate[:, None] * nodes + rows[None, :], mask=square, other=0.0)
    in_r = tl.load(W_in + reset[:, None] * inputs + channels[None, :], mask=wide, other=0.0)
    in_z = tl.load(W_in + update[:, None] * inputs + channels[None, :], mask=wide, other=0.0)
    in_h = tl.load(W_in + candidate[:, None] * inputs + channels[None, :], mask=wide, other=0.0)
    b_r = tl.load(bias + reset, mask=inside, other=0.0)
    b_z = tl.load(bias + update, mask=inside, other=0.0)
    b_h = tl.load(bias + candidate, mask=inside, other=0.0)
    s = tl.load(vectors + (3 * member * batch + sequence) * nodes + rows, mask=inside, other=0.0)
    u += member * u_stride + sequence * steps * inputs
    behind = (member * batch + sequence) * steps * nodes
    for t in range(steps.to(tl.int64)):
        now = tl.load(u + t * inputs + channels, mask=given, other=0.0)[None, :]
        r = sigmoid(b_r + tl.sum(in_r * now, axis=1) + tl.sum(w_r * s[None, :], axis=1))
        z = sigmoid(b_z + tl.sum(in_z * now, axis=1) + tl.sum(w_z * s[None, :], axis=1))
        h = rational_tanh(b_h + tl.sum(in_h * now, axis=1) + tl.sum(w_h * (r * s)[None, :], axis=1))
        x = z * s + (1.0 - z) * h
        place = behind + t * nodes + rows
        if IMPAIRED:
            k = tl.load(keep + member * nodes + rows, mask=inside, other=0.0)
            g = tl.load(gain + member * nodes + rows, mask=inside, other=0.0)
            x = impaired(x, s, k, g, tl.load(additive + place, mask=inside, other=0.0), limits + 3 * member)
        s = x
        tl.store(out + place, s, mask=inside)


@triton.jit(do_not_specialize=["steps", "u_stride"], do_not_specialize_on_alignment=["u"])
def _streamed(
    W, starts, columns, values, W_in, bias, u, vectors, out, keep, gain, limits, additive,
    nodes, inputs, batch, steps, u_stride,
    TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPARSE: tl.constexpr, PRECISION: tl.constexpr,
    IMPAIRED: tl.constexpr,
):  # fmt: skip
    """A tile of sequences of one member; every step reads the weights, and the state from memory."""
    sequences = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    member = tl.program_id(1).to(tl.int64)
    valid = sequences < batch
    u += member * u_stride
    length = steps.to(tl.int64) * inputs
    gated = vectors + (3 * member + 2) * batch * nodes
    for t in range(steps.to(tl.int64)):
        before = vectors + (3 * member + t % 2) * batch * nodes
        behind = vectors + (3 * member + 1 - t % 2) * batch * nodes
        for begin in range(0, nodes, ROWS):
            rows = begin + tl.arange(0, ROWS)
            inside = rows < nodes
            both = valid[:, None] & inside[None, :]
            r = sigmoid(
                weighted_sum(
                    W, starts, columns, values, W_in, bias, u + t * inputs, length, before, 3 * member,
                    rows, inside, nodes, inputs, sequences, valid, TILE, ROWS, COLUMNS, SPARSE, PRECISION,
                )
            )  # fmt: skip
            place = sequences[:, None] * nodes + rows[None, :]
            tl.store(gated + place, r * tl.load(before + place, mask=both, other=0.0), mask=both)
        # The threads of a program read what others of them wrote: here the gated state, below the new one.
        tl.debug_barrier()
        for begin in range(0, nodes, ROWS):
            rows = begin + tl.arange(0, ROWS)
            inside = rows < nodes
            both = valid[:, None] & inside[None, :]
            z = sigmoid(
                weighted_sum(
                    W, starts, columns, values, W_in, bias, u + t * inputs, length, before, 3 * member + 1,
                    rows, inside, nodes, inputs, sequences, valid, TILE, ROWS, COLUMNS, SPARSE, PRECISION,
                )
            )  # fmt: skip
            h = rational_tanh(
                weighted_sum(
                    W, starts, columns, values, W_in, bias, u + t * inputs, length, gated, 3 * member + 2,
                    rows, inside, nodes, inputs, sequences, valid, TILE, ROWS, COLUMNS, SPARSE, PRECISION,
                )
            )  # fmt: skip
            place = sequences[:, None] * nodes + rows[None, :]
            s = tl.load(before + place, mask=both, other=0.0)
            x = z * s + (1.0 - z) * h
            step = ((member * batch + sequences[:, None]) * steps + t) * nodes + rows[None, :]
            if IMPAIRED:
                k = tl.load(keep + member * nodes + rows, mask=inside, other=0.0)[None, :]
                g = tl.load(gain + member * nodes + rows, mask=inside, other=0.0)[None, :]
                x = impaired(x, s, k, g, tl.load(additive + step, mask=both, other=0.0), limits + 3 * member)
            tl.store(behind + place, x, mask=both)
            tl.store(out + step, x, mask=both)
        tl.debug_barrier()
