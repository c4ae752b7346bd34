"""What a launch of the Triton kernels of networks is made of: stacked weights and terms, and the form of the kernel.

Kernels drive a population: `members` networks of one shape, each with weights and terms of its own. One network is a
population of one. A program computes all steps of one sequence of one member, or of a tile of its sequences, and waits
for no other program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from reservoir_hw.backends.simulated.engines import JointLoop, TensorLoop
from reservoir_hw.backends.simulated.kernels.impairment import stack_terms
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.networks.weights import EsnWeights

# Padded weights that the registers of one program hold without spilling, as the compiler for sm_80 and sm_90 reports.
# It widens 16 bits before the first step, so that they count like float32 here.
_RESIDENT_WEIGHTS = 20 * 1024
# Sequences of a launch beyond which a program takes a tile of them: each processor has several programs by then.
_SINGLE_SEQUENCES = 512
# Sequences of a tile: the fewest that a matrix product takes.
_TILE = 16


@dataclass(frozen=True, eq=False)
class StackedWeights:
    """The weights of a population on one device, made by `stack`; `matrices` is 1, or 3 for a gated network.

    `recurrent` are W, starts, columns and values as a kernel takes them. W is (members, matrices, nodes, nodes); where
    the recurrent matrices are CSR (`sparse`), starts (members, matrices, nodes + 1) are places in columns and values,
    which hold the rows of all matrices. In the place of what there is not stands the bias: nothing of it is read.
    `W_in` (members, matrices, nodes, inputs) and `bias` (members, matrices, nodes) are float32, `leak` (members, nodes)
    too; it is None where every rate is 1.
    """

    recurrent: tuple[Tensor, Tensor, Tensor, Tensor]
    sparse: bool
    W_in: Tensor
    bias: Tensor
    leak: Tensor | None


@torch.inference_mode(False)
def stack(
    members: Sequence[Sequence[EsnWeights]], device: torch.device | str, storage: str | None = None
) -> StackedWeights:
    """Copy the weights of a population, for each member those of its matrices, to a device.

    Recurrent weights are kept as `storage` (float16, bfloat16), which must represent them, or as float32. They are kept
    as CSR where all are.
    """
    stored = getattr(torch, storage or "float32")

    def tensor(name: str) -> Tensor:
        arrays = [[getattr(part, name) for part in parts] for parts in members]
        return torch.tensor(np.array(arrays, np.float32), device=device)

    matrices = [part.recurrent() for parts in members for part in parts]
    bias, leak = tensor("bias"), tensor("leak")[:, -1]
    sparse = all(issparse(matrix) for matrix in matrices)
    if sparse:
        csr: list[Any] = matrices
        ends = np.cumsum([0, *(matrix.nnz for matrix in csr)])
        rows = np.array([matrix.indptr.astype(np.int64) + begin for matrix, begin in zip(csr, ends[:-1], strict=True)])
        columns = torch.tensor(np.concatenate([matrix.indices for matrix in csr]).astype(np.int32), device=device)
        values = torch.tensor(np.concatenate([matrix.data for matrix in csr]), dtype=stored, device=device)
        recurrent = (bias, torch.tensor(rows, device=device), columns, values)
    else:
        full = [matrix.toarray() if issparse(matrix) else matrix for matrix in matrices]
        recurrent = (torch.tensor(np.array(full), dtype=stored, device=device), bias, bias, bias)
    return StackedWeights(
        recurrent=recurrent,
        sparse=sparse,
        W_in=tensor("W_in"),
        bias=bias,
        leak=leak.contiguous() if bool((leak != 1).any()) else None,
    )


class Form(NamedTuple):
    """How a kernel is laid out: what is a constant of its compilation."""

    resident: bool
    """Whether the weights stay in registers; else they are read anew in every step."""

    tile: int
    """Sequences of one program."""

    rows: int
    """Nodes that are computed together."""

    columns: int
    """Weights of a row that are read together."""

    warps: int


def form_of(weights: StackedWeights, batch: int) -> Form:
    """The form that suits the sizes; the number of time steps has no part in it, so that chunks round alike."""
    members, matrices, nodes, inputs = weights.W_in.shape
    if weights.sparse:
        mean = len(weights.recurrent[-1]) / (members * matrices * nodes)
        return Form(False, 1, 64 if matrices == 1 else 32, min(32, power_of_2(round(mean))), 4)
    width = power_of_2(nodes)
    if batch >= _TILE and members * batch > _SINGLE_SEQUENCES:
        return Form(False, _TILE, 64 if matrices == 1 else 32, 32, 4)
    count = matrices * width * (width + power_of_2(inputs))
    if count <= _RESIDENT_WEIGHTS:
        return Form(True, 1, width, width, min(16, max(1, power_of_2(count) // 1024)))
    return Form(False, 1, 32, 128 if matrices == 1 else 64, 8)


def power_of_2(number: int) -> int:
    """The power of two from 16 on that is not smaller: the lengths that blocks can have."""
    return max(16, 1 << max(0, number - 1).bit_length())


def launch(
    resident: Any,
    streamed: Any,
    weights: StackedWeights,
    u: Tensor,
    states: Tensor,
    loops: Sequence[LoopTerms | None] | None,
    form: Form | None,
    *,
    scratch: int,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """Drive a population with that one of the two kernels that fits, or that `form` says.

    `u` is (members or 1, batch, time, inputs), `states` (members, batch, nodes); `scratch` vectors of every sequence
    are filled with its state. `more` are further arguments of both kernels. Returns the states
    (members, batch, time, nodes) and the last of them.
    """
    members, _, nodes, inputs = weights.W_in.shape
    u = u.contiguous()
    batch, steps = u.shape[1:3]
    out = u.new_empty((members, batch, steps, nodes))
    if not out.numel():
        return out, states.clone()
    terms = stack_terms(loops, u, tuple(out.shape))
    form = form or form_of(weights, batch)
    vectors = torch.stack([states] * scratch, dim=1)
    pointers = (weights.W_in, weights.bias, u, vectors, out, *(terms or 4 * (weights.bias,)))
    sizes = (nodes, inputs, batch, steps, u.stride(0) if len(u) > 1 else 0)
    # Left to itself, triton changes its mind about fusion from version to version.
    more |= {"IMPAIRED": terms is not None, "num_warps": form.warps, "enable_fp_fusion": True}
    grid = (-(-batch // form.tile), members)
    with torch.cuda.device_of(u):
        if form.resident:
            resident[grid](weights.recurrent[0], *pointers, *sizes, BLOCK=form.rows, INPUTS=power_of_2(inputs), **more)
        else:
            streamed[grid](
                *weights.recurrent, *pointers, *sizes, TILE=form.tile, ROWS=form.rows, COLUMNS=form.columns,
                SPARSE=weights.sparse, PRECISION=_product_precision(), num_stages=1, **more,
            )  # fmt: skip
    return out, out[:, :, -1].clone()


def alone(loop: JointLoop) -> TensorLoop:
    """The loop of one network, from that of a population."""

    def run(u: Tensor, state: Tensor, terms: LoopTerms | None) -> tuple[Tensor, Tensor]:
        states, last = loop(u[None], state[None], [terms])
        return states[0], last[0]

    return run


def _product_precision() -> str:
    """How matrix products of float32 round: exactly, unless torch was told that TF32 will do."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
