"""The time loop of the simulated delay loops as a Triton kernel.

The equations are those of `cpu_loop.py`; all steps are one launch. A program computes one sequence and waits for no
other program. It takes the virtual nodes that do not feed each other through the delay at once, and solves the
recurrence from node to node by an associative scan (Blelloch 1990) where it is linear, else in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from reservoir_hw.backends.simulated.delay_loop import physics
from reservoir_hw.backends.simulated.delay_loop.physics import Equation
from reservoir_hw.backends.simulated.delay_loop.torch_loop import is_coupled, is_linear
from reservoir_hw.backends.simulated.kernels.impairment import stack_terms
from reservoir_hw.backends.simulated.kernels.triton_functions import impaired
from reservoir_hw.backends.simulated.kernels.triton_launch import power_of_2
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms

# Nodes that are computed together at most: four for each thread of eight warps.
_LONGEST = 1024
# A kernel sees no other global names than constants of triton.
_PAQUOT, _IKEDA, _MACKEY_GLASS = map(tl.constexpr, (physics.PAQUOT, physics.IKEDA, physics.MACKEY_GLASS))
# How the nodes of a block are coupled: through the delay alone, by a linear recurrence, or by one that is not linear.
_ALONE, _SCAN, _IN_TURN = map(tl.constexpr, range(3))


def prepare(equation: Equation, device: torch.device | str = "cuda") -> Callable[..., None]:
    """`run` with the numbers of an equation on a device."""
    with torch.inference_mode(False):
        return partial(run, equation, torch.tensor(equation.numbers, dtype=torch.float32, device=device))


def whole_exponent(equation: Equation) -> int:
    """The exponent, if it is a small whole number; else 0."""
    return int(equation.exponent) if equation.exponent == int(equation.exponent) <= 64 else 0


def warps_of(width: int, coupling: tl.constexpr) -> int:
    """Warps of a program that computes so many nodes together: four nodes for a thread."""
    # In turn all warps would compute the same node.
    return 1 if coupling == _IN_TURN else max(1, power_of_2(width) // 128)


def run(equation: Equation, numbers: Tensor, drive: Tensor, history: Tensor, loop: LoopTerms | None = None) -> None:
    """As `torch_loop.run`, in float32 and in one launch; `numbers` are those of the equation, on the device."""
    batch, steps, nodes = drive.shape
    delay = history.shape[1]
    if not drive.numel():
        return
    terms = stack_terms([loop], drive, (1, *drive.shape))
    coupling = _ALONE
    if is_coupled(equation, loop):
        coupling = _SCAN if loop is None or is_linear(loop) else _IN_TURN
    width = min(delay, nodes, _LONGEST)
    fresh = drive.new_empty((batch, width)) if coupling == _IN_TURN else drive
    kernel: Any = _run
    with torch.cuda.device_of(drive):
        kernel[(batch,)](
            numbers, history, drive, fresh, *(terms or 4 * (numbers,)), nodes, delay, width, steps,
            BLOCK=power_of_2(width), CODE=equation.code, EXPONENT=whole_exponent(equation),
            COUPLING=coupling, IMPAIRED=terms is not None, num_warps=warps_of(width, coupling), enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit
def _power(x, exponent, EXPONENT: tl.constexpr):
    """|x|^exponent: by repeated squaring where it is a small whole number, EXPONENT."""
    base = tl.abs(x)
    if EXPONENT == 0:
        # By a logarithm, which 0 does not have.
        exact = tl.where(base == 0.0, 1.0, base).to(tl.float64)
        return tl.where(base == 0.0, 0.0, tl.exp2(exponent.to(tl.float64) * tl.log2(exact)).to(tl.float32))
    result = tl.zeros_like(x) + 1.0
    for bit in tl.static_range(7):
        if EXPONENT & (1 << bit):
            result *= base
        base *= base
    return result


@triton.jit
def _respond(z, drive, numbers, CODE: tl.constexpr, EXPONENT: tl.constexpr):
    """f of the delayed values z; `numbers` points to those of the equation."""
    feedback_gain, input_gain = tl.load(numbers), tl.load(numbers + 1)
    phase, exponent = tl.load(numbers + 2), tl.load(numbers + 3)
    if CODE == _PAQUOT:
        z = tl.sin(feedback_gain * z + input_gain * drive + phase)
    if CODE == _IKEDA:
        s = tl.sin(z + input_gain * drive + phase)
        z = feedback_gain * (s * s)
    if CODE == _MACKEY_GLASS:
        z += input_gain * drive
        z = feedback_gain * z / (1.0 + _power(z, exponent, EXPONENT))
    return z


@triton.jit
def _compose(factor, term, next_factor, next_term):
    """Two maps x -> factor x + term, one after the other."""
    return factor * next_factor, next_factor * term + next_term


# Neither the number of steps nor where a tensor lies may change how a step is compiled, and so how it rounds.
@triton.jit(do_not_specialize=["steps"], do_not_specialize_on_alignment=["out", "history", "additive"])
def _run(
    numbers, history, out, fresh, keep, gain, limits, additive, nodes, delay, width, steps,
    BLOCK: tl.constexpr, CODE: tl.constexpr, EXPONENT: tl.constexpr, COUPLING: tl.constexpr, IMPAIRED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    history += row * delay
    out += row * steps * nodes
    additive += row * steps * nodes
    fresh += row * width
    decay, rise = tl.load(numbers + 4), tl.load(numbers + 5)
    lanes = tl.arange(0, BLOCK)
    value = tl.load(history + delay - 1)
    # The place of the step among all virtual nodes of the sequence.
    step = tl.full((), 0, tl.int64)
    for _ in range(steps):
        for begin in range(0, nodes, width):
            count = tl.minimum(width, nodes - begin)
            inside = lanes < count
            node = begin + lanes
            place = step + node
            z = tl.load(history + place, mask=inside & (place < delay), other=0.0)
            z += tl.load(out + place - delay, mask=inside & (place >= delay), other=0.0)
            x = rise * _respond(z, tl.load(out + place, mask=inside, other=0.0), numbers, CODE, EXPONENT)
            if COUPLING == _IN_TURN:
                tl.store(fresh + lanes, x, mask=inside)
                tl.debug_barrier()
                for i in range(count):
                    at = begin + i
                    k, g = tl.load(keep + at), tl.load(gain + at)
                    here = step + at
                    x_i = decay * value + tl.load(fresh + i)
                    value = impaired(x_i, value, k, g, tl.load(additive + here), limits)
                    tl.store(out + here, value)
            else:
                factor = tl.zeros_like(x) + decay
                if IMPAIRED:
                    k = tl.load(keep + node, mask=inside, other=0.0)
                    g = tl.load(gain + node, mask=inside, other=0.0)
                    more = tl.load(additive + place, mask=inside, other=0.0)
                    if COUPLING == _ALONE:
                        x = impaired(x, 0.0, k, g, more, limits)
                    else:
                        x = g * x + more
                        factor = k + g * factor
                if COUPLING == _SCAN:
                    factor, x = tl.associative_scan((factor, x), 0, _compose)
                    x += factor * value
                    value = tl.sum(tl.where(lanes == count - 1, x, 0.0), axis=0)
                tl.store(out + place, x, mask=inside)
            # The threads of a program read later what others of them wrote here.
            tl.debug_barrier()
        step += nodes
