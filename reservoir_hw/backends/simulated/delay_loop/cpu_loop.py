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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.backends.simulated.delay_loop.physics import IKEDA, PAQUOT

# numba by way of `compiled`, which says how to install it.
from reservoir_hw.backends.simulated.kernels.compiled import EXACT, ORDERED, impaired_value, jit

Array = NDArray[Any]

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
