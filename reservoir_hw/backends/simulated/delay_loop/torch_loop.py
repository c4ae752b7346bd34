"""The time loop of the simulated delay loops in torch: for a GPU, and where there is no numba.

The equations are those of `cpu_loop.py`. All virtual nodes that do not feed each other through the delay are computed
at once, as there; sequences are lanes. What is left within such a block is a recurrence from node to node,

    x_j = a_j x_(j-1) + b_j,

with a_j = decay, or with that and the low-pass of the loop's non-idealities. Because it is linear, it is solved in
log2 of the block's length passes (Kogge & Stone 1973): after pass k a value holds the last 2^k terms. Where a soft
limit or rounding stands between the nodes, they are computed one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.backends.simulated.delay_loop.physics import IKEDA, PAQUOT, Equation
from reservoir_hw.backends.simulated.kernels.impairment import impaired
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms


def masking(columns: np.ndarray, bias: np.ndarray, device: str) -> Callable[[Tensor, object], Tensor]:
    """What a mask makes of inputs (batch, time, inputs), to the bit as `Mask.apply`: (batch, time, nodes)."""
    given, offset = torch.tensor(columns, device=device), torch.tensor(bias, device=device)

    def masked(u: Tensor, out: object = None) -> Tensor:
        drive = offset.repeat(*u.shape[:2], 1)
        for channel, column in enumerate(given):
            # Channel after channel: a matrix product would round by the number of rows.
            drive += u[..., channel, None] * column
        return drive

    return masked


def driven(
    loop: Callable[[Tensor, Tensor, LoopTerms | None], None],
    drive: Callable[[Tensor], Tensor],
    u: Tensor,
    history: Tensor,
    terms: LoopTerms | None,
) -> tuple[Tensor, Tensor]:
    """The states (batch, time, nodes) of a `loop` like `run`, and the values in the loop after them, (batch, delay)."""
    states = drive(u).contiguous()
    # The states are of the dtype that was declared, whatever the caller's own model computes in.
    with torch.autocast(u.device.type, enabled=False):
        loop(states, history.contiguous(), terms)
    delay = history.shape[1]
    return states, torch.cat([history, states.flatten(1)[:, -delay:]], 1)[:, -delay:]


def prepare(equation: Equation, dtype: np.dtype[Any]) -> Callable[[Tensor, Tensor, LoopTerms | None], None]:
    """`run` with the numbers of an equation as this dtype holds them."""
    return partial(run, Equation(equation.code, *(float(dtype.type(number)) for number in equation.numbers)))


def run(equation: Equation, drive: Tensor, history: Tensor, terms: LoopTerms | None = None) -> None:
    """Write the states over what drives the nodes, (batch, time, nodes), from the values in the loop (batch, delay).

    Both are contiguous, and `history` has the oldest value first. For the same batch the result does not depend on how
    the time steps are divided among calls, bit for bit.
    """
    batch, steps, nodes = drive.shape
    delay = history.shape[1]
    flat = drive.view(batch, steps * nodes)
    block = min(delay, nodes)
    couple = _coupling(equation, terms, block, drive)
    value = history[:, -1]
    for t in range(steps):
        for begin in range(0, nodes, block):
            here = slice(begin, min(begin + block, nodes))
            first, end = t * nodes + here.start, t * nodes + here.stop
            # Of the delayed values some may stand in the history, the others among the new states.
            old, new = history[:, first:end], flat[:, max(0, first - delay) : max(0, end - delay)]
            x = equation.rise * _respond(equation, torch.cat([old, new], 1), flat[:, first:end])
            x = couple(x, value, t, here)
            flat[:, first:end] = x
            value = x[:, -1]


def _respond(equation: Equation, z: Tensor, drive: Tensor) -> Tensor:
    """f of the delayed values."""
    driven = equation.input_gain * drive
    if equation.code == PAQUOT:
        return torch.sin(equation.feedback_gain * z + driven + equation.phase)
    if equation.code == IKEDA:
        return equation.feedback_gain * torch.sin(z + driven + equation.phase).square()
    z = z + driven
    return equation.feedback_gain * z / (1 + z.abs() ** equation.exponent)


Coupling = Callable[[Tensor, Tensor, int, slice], Tensor]
"""Makes the states of a block of rise · f (batch, block), the value before it (batch,), the step, and its nodes."""


def _coupling(equation: Equation, terms: LoopTerms | None, block: int, like: Tensor) -> Coupling:
    if not is_coupled(equation, terms):
        return partial(_alone, terms)
    if terms is not None and not is_linear(terms):
        return partial(_in_turn, equation.decay, terms)
    factor = like.new_full((like.shape[2],), equation.decay)
    if terms is not None:
        factor = terms.keep + terms.gain * factor
    return partial(_scan, _products(factor, block), terms)


def is_coupled(equation: Equation, terms: LoopTerms | None) -> bool:
    """Whether a node is driven by the one before it, not through the delay alone."""
    return equation.decay != 0 or (terms is not None and bool(terms.keep.any()))


def is_linear(terms: LoopTerms) -> bool:
    """Whether the terms act on a new state as a factor and a sum."""
    return terms.saturation == np.inf and terms.lsb == 0


def _alone(terms: LoopTerms | None, x: Tensor, value: Tensor, t: int, here: slice) -> Tensor:
    if terms is None:
        return x
    return impaired(terms, x, value[:, None], terms.keep[here], terms.gain[here], terms.additive[:, t, here])


def _in_turn(decay: float, terms: LoopTerms, x: Tensor, value: Tensor, t: int, here: slice) -> Tensor:
    columns = zip(x.T, terms.keep[here], terms.gain[here], terms.additive[:, t, here].T, strict=True)
    after = []
    for rise, keep, gain, additive in columns:
        value = impaired(terms, decay * value + rise, value, keep, gain, additive)
        after.append(value)
    return torch.stack(after, 1)


def _products(factor: Tensor, block: int) -> list[Tensor]:
    """For each pass k and node the product of the last 2^k factors (nodes,)."""
    products = [factor]
    while 2 ** len(products) < block:
        reach = 2 ** (len(products) - 1)
        longer = products[-1].clone()
        longer[reach:] *= products[-1][:-reach]
        products.append(longer)
    return products


def _scan(products: list[Tensor], terms: LoopTerms | None, x: Tensor, value: Tensor, t: int, here: slice) -> Tensor:
    if terms is not None:
        x = terms.gain[here] * x + terms.additive[:, t, here]
    x[:, 0] += products[0][here.start] * value
    for k, product in enumerate(products):
        reach = 2**k
        x[:, reach:] += product[here][reach:] * x[:, :-reach]
    return x
