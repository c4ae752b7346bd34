"""The time loop of the simulated delay loops on the CPU, compiled by numba.

All virtual nodes of all steps lie in one line, v_j with j = step · nodes + node, and each is driven by the value that
entered the loop `delay` nodes earlier, v_(j - delay): the states that are returned are the loop's memory. With

    x_j = decay v_(j-1) + (1 - decay) f(v_(j-delay), masked input)

decay = e^-theta is the exact solution, over one theta, of a node with a low-pass whose drive is held for that time
(Appeltant et al. 2011; Larger et al. 2012); a node without one has decay = 0 (Paquot et al. 2012).

f is computed for all nodes between two passages at once. Blocks, and with them every rounding, depend on the number of
nodes and the delay alone: a run in one piece, in chunks or step by step gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.backends.simulated.delay_loop.physics import IKEDA, PAQUOT, Equation

# numba by way of `compiled`, which says how to install it.
from reservoir_hw.backends.simulated.kernels.compiled import EXACT, ORDERED, impaired_value, jit
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core.threads import cores, share_out, threads_here

Array = NDArray[Any]

# Node updates under which a second thread costs more than it brings.
_THREADED = 20_000

# π in three parts (Cody & Waite 1980), 30 bits in each of the first two, so that their multiples are exact.
_PI_1 = 3.141592651605606
_PI_2 = 1.9841871583270443e-09
_PI_3 = 1.034036596358821e-18


@jit(ORDERED)
def sine(x):
    """Sin x in float64 within 3e-16 for |x| < 1e6; unlike the C library's it vectorises by itself."""
    turns = np.floor(x * np.float64(0.3183098861837907) + 0.5)
    r = ((x - turns * _PI_1) - turns * _PI_2) - turns * _PI_3
    half = 0.5 * turns
    sign = 1.0 - 4.0 * (half - np.floor(half))
    # Taylor's series on ±π/2: the first term left out is 1e-18 there.
    q = r * r
    p = -1.0 / 51090942171709440000.0
    p = p * q + 1.0 / 121645100408832000.0
    p = p * q - 1.0 / 355687428096000.0
    p = p * q + 1.0 / 1307674368000.0
    p = p * q - 1.0 / 6227020800.0
    p = p * q + 1.0 / 39916800.0
    p = p * q - 1.0 / 362880.0
    p = p * q + 1.0 / 5040.0
    p = p * q - 1.0 / 120.0
    p = p * q + 1.0 / 6.0
    return sign * (r - r * q * p)


@jit(EXACT)
def mask_inputs(columns, bias, u, out):
    """out (time, nodes) = mask · u (time, inputs) + bias, to the bit what `Mask.apply` makes of it.

    `columns` are the mask's, (inputs, nodes).
    """
    for t in range(u.shape[0]):
        row = out[t]
        for i in range(row.shape[0]):
            row[i] = bias[i]
        for k in range(u.shape[1]):
            value, column = u[t, k], columns[k]
            if value != 0:
                for i in range(row.shape[0]):
                    row[i] += column[i] * value


@jit(ORDERED)
def _respond(code, z, drive, feedback_gain, input_gain, phase, exponent, power):
    """f of the delayed values z, in place; `power` is scratch space."""
    if code == PAQUOT:
        for i in range(z.shape[0]):
            z[i] = sine(feedback_gain * z[i] + input_gain * drive[i] + phase)
        return
    if code == IKEDA:
        for i in range(z.shape[0]):
            s = sine(z[i] + input_gain * drive[i] + phase)
            z[i] = feedback_gain * (s * s)
        return
    for i in range(z.shape[0]):
        z[i] = z[i] + input_gain * drive[i]
    if exponent == np.floor(exponent) and exponent <= 64:
        _raise_to(int(exponent), z, power)
    else:
        for i in range(z.shape[0]):
            power[0, i] = np.abs(z[i]) ** exponent
    one = z.dtype.type(1)
    for i in range(z.shape[0]):
        z[i] = feedback_gain * z[i] / (one + power[0, i])


@jit(ORDERED)
def _raise_to(exponent, z, power):
    """power[0] = |z|^exponent by repeated squaring: the passes vectorise, a power of real numbers does not."""
    result, base = power[0], power[1]
    for i in range(z.shape[0]):
        result[i] = 1
        base[i] = np.abs(z[i])
    while exponent:
        if exponent & 1:
            for i in range(z.shape[0]):
                result[i] *= base[i]
        exponent >>= 1
        if exponent:
            for i in range(z.shape[0]):
                base[i] *= base[i]


@jit(ORDERED)
def sequence(
    columns, bias, u, history, scratch, out, driven,
    code, feedback_gain, input_gain, phase, exponent, decay, rise,
    impaired, saturation, keep, gain, additive, lsb, limit,
):  # fmt: skip
    """Steps of one sequence on one thread.

    `history` (delay,) are the values in the loop, the oldest first; `out` (time, nodes) receives the states. If it is
    `driven` it already holds what drives the nodes, otherwise that is made from `u`. `scratch` is (3, nodes).
    """
    steps, nodes = out.shape
    delay = history.shape[0]
    flat = out.reshape(steps * nodes)
    block = min(delay, nodes)
    value = history[delay - 1]
    for t in range(steps):
        if not driven:
            mask_inputs(columns, bias, u[t : t + 1], out[t : t + 1])
        for begin in range(0, nodes, block):
            count = min(block, nodes - begin)
            first = t * nodes + begin
            z = scratch[0, :count]
            old = max(0, min(count, delay - first))
            for i in range(old):
                z[i] = history[first + i]
            for i in range(old, count):
                z[i] = flat[first + i - delay]
            x = flat[first : first + count]
            _respond(code, z, x, feedback_gain, input_gain, phase, exponent, scratch[1:, :count])
            if impaired:
                for i in range(count):
                    node = begin + i
                    x[i] = impaired_value(
                        decay * value + rise * z[i], value, saturation, keep[node], gain[node], additive[t, node],
                        lsb, limit,
                    )  # fmt: skip
                    value = x[i]
            elif decay == 0:
                for i in range(count):
                    x[i] = z[i]
            else:
                for i in range(count):
                    x[i] = decay * value + rise * z[i]
                    value = x[i]


# ---- All sequences.


def masked(columns: Array, bias: Array, u: Array, out: Array | None = None) -> Array:
    """What the mask makes of inputs (batch, time, inputs), to the bit as `Mask.apply`: (batch, time, nodes)."""
    driven = np.empty((*u.shape[:2], len(bias)), bias.dtype) if out is None else out
    for given, rows in zip(np.ascontiguousarray(u), driven, strict=True):
        mask_inputs(columns, bias, given, rows)
    return driven


def run(
    columns: Array,
    bias: Array,
    equation: Equation,
    driven: Callable[[Array, Array], Array] | None,
    u: Array,
    history: Array,
    out: Array | None = None,
    terms: LoopTerms | None = None,
) -> Array:
    """Drive the loop with `u` (batch, time, inputs); the result is (batch, time, nodes), in `out` if given.

    `history` (batch, delay) are the values in the loop, the oldest first; it is brought up to date in place. `columns`
    and `bias` are the mask's, in the dtype of the states. `driven(u, out)` makes of the inputs what drives the nodes;
    without it they are masked step by step.
    """
    (batch, steps), number = u.shape[:2], bias.dtype.type
    u = np.ascontiguousarray(u)
    if out is None:
        out = np.empty((batch, steps, len(bias)), bias.dtype)
    if driven is not None:
        out[...] = driven(u, out)
    scratch = np.empty((batch, 3, len(bias)), bias.dtype)
    numbers = (driven is not None, equation.code, *map(number, equation.numbers), terms is not None)
    if terms is None:
        nothing = np.zeros((batch, 1, 1), bias.dtype)
        terms = LoopTerms(number(np.inf), bias, bias, nothing, number(0), number(0))
    saturation, keep, gain, additive, lsb, limit = terms
    states = out

    def drive(b: int) -> None:
        sequence(
            columns, bias, u[b], history[b], scratch[b], states[b], *numbers,
            saturation, keep, gain, additive[b], lsb, limit,
        )  # fmt: skip

    share_out(drive, range(batch), threads_here(cores()) if out.size >= _THREADED else 1)
    delay = history.shape[1]
    history[...] = np.concatenate([history, out.reshape(batch, -1)[:, -delay:]], axis=1)[:, -delay:]
    return out
