"""The time loop of the simulated echo state network as Triton kernels, for one network or a population.

s_t = (1-a) ⊙ s_{t-1} + a ⊙ f(W s_{t-1} + W_in u_t + b) (Jaeger et al. 2007, eq. 1).

States and sums are float32. All steps are one launch. Two kernels: one keeps its weights in registers, the other reads
them in every step, dense or CSR.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from reservoir_hw.backends.simulated.engines import Activation
from reservoir_hw.backends.simulated.kernels.triton_functions import activate, impaired, weighted_sum
from reservoir_hw.backends.simulated.kernels.triton_launch import Form, StackedWeights, launch, stack
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.networks.weights import EsnWeights


def prepare(
    members: Sequence[EsnWeights], device: torch.device | str = "cuda", storage: str | None = None
) -> StackedWeights:
    """The weights of a population, of one shape, on a device; a single network is a population of one.

    Recurrent weights are kept as `storage` (float16 or bfloat16, in which they must be representable) or as float32,
    and as CSR where all members have CSR.
    """
    return stack([[weights] for weights in members], device, storage)


def run_members(
    weights: StackedWeights,
    u: Tensor,
    states: Tensor,
    loops: Sequence[LoopTerms | None] | None = None,
    *,
    activation: Activation = "tanh",
    form: Form | None = None,
) -> tuple[Tensor, Tensor]:
    """Drive a population in one launch.

    `u` is (members or 1, batch, time, inputs): one for each member, or the same for all. `states` is
    (members, batch, nodes), `loops` has the terms of each member, or None where a member has none. All tensors are
    float32 and on the device of the weights. Returns the states (members, batch, time, nodes) and the last of them,
    (members, batch, nodes). `form` lays the kernel out otherwise than `form_of` does. For the same batch size the
    result does not depend on how the time steps are divided among calls, bit for bit.
    """
    leak = weights.bias if weights.leak is None else weights.leak
    flags = {"ACTIVATION": activation, "LEAKY": weights.leak is not None}
    return launch(_resident, _streamed, weights, u, states, loops, form, scratch=2, leak=leak, **flags)


# Neither the number of steps nor where the inputs lie may change how a step is compiled, and so how it rounds.
@triton.jit(do_not_specialize=["steps", "u_stride"], do_not_specialize_on_alignment=["u"])
def _resident(
    W, W_in, bias, u, vectors, out, keep, gain, limits, additive, nodes, inputs, batch, steps, u_stride, leak,
    BLOCK: tl.constexpr, INPUTS: tl.constexpr, ACTIVATION: tl.constexpr, LEAKY: tl.constexpr, IMPAIRED: tl.constexpr,
):  # fmt: skip
    """One sequence of one member, with all weights in registers."""
    sequence, member = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, channels = tl.arange(0, BLOCK), tl.arange(0, INPUTS)
    inside, given = rows < nodes, channels < inputs
    first = member * nodes
    w = tl.load(W + (first + rows[:, None]) * nodes + rows[None, :], mask=inside[:, None] & inside[None, :], other=0.0)
    places = (first + rows[:, None]) * inputs + channels[None, :]
    w_in = tl.load(W_in + places, mask=inside[:, None] & given[None, :], other=0.0)
    b = tl.load(bias + first + rows, mask=inside, other=0.0)
    s = tl.load(vectors + (2 * member * batch + sequence) * nodes + rows, mask=inside, other=0.0)
    u += member * u_stride + sequence * steps * inputs
    behind = (member * batch + sequence) * steps * nodes
    for t in range(steps.to(tl.int64)):
        now = tl.load(u + t * inputs + channels, mask=given, other=0.0)
        x = b + tl.sum(w_in * now[None, :], axis=1)
        x = activate(x + tl.sum(w.to(tl.float32) * s[None, :], axis=1), ACTIVATION)
        if LEAKY:
            a = tl.load(leak + first + rows, mask=inside, other=0.0)
            x = (1.0 - a) * s + a * x
        place = behind + t * nodes + rows
        if IMPAIRED:
            k = tl.load(keep + first + rows, mask=inside, other=0.0)
            g = tl.load(gain + first + rows, mask=inside, other=0.0)
            x = impaired(x, s, k, g, tl.load(additive + place, mask=inside, other=0.0), limits + 3 * member)
        s = x
        tl.store(out + place, s, mask=inside)


@triton.jit(do_not_specialize=["steps", "u_stride"], do_not_specialize_on_alignment=["u"])
def _streamed(
    W, starts, columns, values, W_in, bias, u, vectors, out, keep, gain, limits, additive,
    nodes, inputs, batch, steps, u_stride, leak,
    TILE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPARSE: tl.constexpr, PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr, LEAKY: tl.constexpr, IMPAIRED: tl.constexpr,
):  # fmt: skip
    """A tile of sequences of one member; every step reads the weights, and the state from memory."""
    sequences = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    member = tl.program_id(1).to(tl.int64)
    valid = sequences < batch
    first = member * nodes
    u += member * u_stride
    length = steps.to(tl.int64) * inputs
    for t in range(steps.to(tl.int64)):
        before = vectors + (2 * member + t % 2) * batch * nodes
        behind = vectors + (2 * member + 1 - t % 2) * batch * nodes
        for begin in range(0, nodes, ROWS):
            rows = begin + tl.arange(0, ROWS)
            inside = rows < nodes
            both = valid[:, None] & inside[None, :]
            x = weighted_sum(
                W, starts, columns, values, W_in, bias, u + t * inputs, length, before, member,
                rows, inside, nodes, inputs, sequences, valid, TILE, ROWS, COLUMNS, SPARSE, PRECISION,
            )  # fmt: skip
            x = activate(x, ACTIVATION)
            place = sequences[:, None] * nodes + rows[None, :]
            s = tl.load(before + place, mask=both, other=0.0)
            if LEAKY:
                a = tl.load(leak + first + rows, mask=inside, other=0.0)[None, :]
                x = (1.0 - a) * s + a * x
            step = ((member * batch + sequences[:, None]) * steps + t) * nodes + rows[None, :]
            if IMPAIRED:
                k = tl.load(keep + first + rows, mask=inside, other=0.0)[None, :]
                g = tl.load(gain + first + rows, mask=inside, other=0.0)[None, :]
                x = impaired(x, s, k, g, tl.load(additive + step, mask=both, other=0.0), limits + 3 * member)
            tl.store(behind + place, x, mask=both)
            tl.store(out + step, x, mask=both)
        # The threads of a program read in the next step what others of them wrote in this one.
        tl.debug_barrier()
