"""The inner loops of the simulated networks, compiled by numba.

Sums are ordered by the sizes of the network alone, never by the number of time steps or threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.backends.simulated.engines import Activation
from reservoir_hw.core.errors import MissingExtra

try:
    import llvmlite.binding
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
except ImportError as error:  # pragma: no cover
    raise MissingExtra("the simulated reservoir's CPU kernels need numba: pip install 'reservoir-hw[sim]'") from error

_Kernel: TypeAlias = Callable[..., Any]

IDENTITY, RELU, TANH, RATIONAL_TANH = range(4)

# Sums may be reordered, which lets them vectorise; NaN and infinity must survive, so no "fast".
REORDERED = frozenset({"reassoc", "contract", "nsz"})
# Everything else keeps its order: the error bound of the activation was measured in that order.
ORDERED = frozenset({"contract"})
# Each product and sum is rounded, as numpy does.
EXACT: frozenset[str] = frozenset()

# Rows per scratch block of the sparse kernels: the block's states stay in the first-level cache.
_BLOCK = 1024
# A vector register of AVX-512 in float32, and the unit in which rows are shared out among threads.
LANES = 16
# Sequences in a tile of a batch. With the bytes below its sums are eight registers of AVX2: as many as hide the latency
# of a multiplication, and few enough to leave registers for the operands.
ROWS = 4
TILE_BYTES = 64
# Panels that one vector is multiplied with at once, their sums in registers: eight hide the latency of a
# multiplication, but six are what the 16 registers of AVX2, half a panel wide, have room for.
MOST_PANELS = 8 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 6
# Columns of a dense matrix that are summed one after another; longer sums are sums of such sums, so that rounding does
# not grow with the network.
SUMMED_COLUMNS = 64
# Nonzeros of a sparse row that are gathered together; rows are padded to multiples of it.
GROUP = 8

# Unsigned constants: in numba an unsigned and a signed integer meet as a float.
_1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(n) for n in range(1, 9))


def jit(fastmath: frozenset[str], *, parallel: bool = False, inline: bool = False) -> Callable[[_Kernel], _Kernel]:
    """numba.njit without the interpreter lock, cached where a folder for it can be written to.

    `inline` is for what a time loop calls at each step: it makes no arrays, and references to its arguments are not
    counted, which for a small network would take as long as a third of the step.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "fastmath": set(fastmath),
        "parallel": parallel,
        "forceinline": inline,
        "_nrt": not inline,
        "error_model": "numpy",
    }

    def decorate(function: _Kernel) -> _Kernel:
        try:
            compiled: Any = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            # Neither the package's folder nor a user's cache folder can be written to.
            compiled = numba.njit(**options)(function)
        return compiled

    return decorate


def activation_code(activation: Activation, dtype: np.dtype[Any]) -> int:
    """The number by which `activate` knows an activation."""
    return {"identity": IDENTITY, "relu": RELU, "tanh": RATIONAL_TANH if dtype == np.float32 else TANH}[activation]


def _number(typing_context, weight):
    """A stored weight as a number to calculate with: the bits of a float16 become a float32."""
    del typing_context
    if weight != types.uint16:
        return weight(weight), lambda context, builder, signature, arguments: arguments[0]

    def widen(context, builder, signature, arguments):
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(weight), widen


number: Any = intrinsic(_number)


@jit(ORDERED)
def rational_tanh(x):
    """tanh in float32 within 3.1e-7, never beyond ±1."""
    # Eigen's approximation: odd degree 13 over even degree 6, clamped where tanh rounds to 1.
    # Comparisons, not min and max, so that NaN stays NaN.
    limit = np.float32(7.90531110763549805)
    if x > limit:
        x = limit
    if x < -limit:
        x = -limit
    q = x * x
    p = np.float32(-2.76076847742355e-16)
    p = p * q + np.float32(2.00018790482477e-13)
    p = p * q + np.float32(-8.60467152213735e-11)
    p = p * q + np.float32(5.12229709037114e-08)
    p = p * q + np.float32(1.48572235717979e-05)
    p = p * q + np.float32(6.37261928875436e-04)
    p = p * q + np.float32(4.89352455891786e-03)
    d = np.float32(1.19825839466702e-06)
    d = d * q + np.float32(1.18534705686654e-04)
    d = d * q + np.float32(2.26843463243900e-03)
    d = d * q + np.float32(4.89352518554385e-03)
    return x * p / d


@jit(ORDERED)
def activate(code, x):
    """The activation, in place."""
    if code == RATIONAL_TANH:
        for i in range(x.shape[0]):
            x[i] = rational_tanh(x[i])
    elif code == TANH:
        for i in range(x.shape[0]):
            x[i] = np.tanh(x[i])
    elif code == RELU:
        for i in range(x.shape[0]):
            if x[i] < 0:
                x[i] = 0


@jit(ORDERED)
def leak(x, before, keep, gain):
    """x <- keep before + gain x."""
    for i in range(x.shape[0]):
        x[i] = keep[i] * before[i] + gain[i] * x[i]


@jit(ORDERED)
def impaired_value(x, before, saturation, keep, gain, additive, lsb, limit):
    """What `LoopTerms` makes of one freshly computed state."""
    if saturation < np.inf:
        x = saturation * np.tanh(x / saturation)
    x = keep * before + gain * x + additive
    if lsb > 0:
        x = min(max(np.floor(x / lsb + 0.5) * lsb, -limit), limit - lsb)
    return x


@jit(ORDERED)
def impair(x, before, saturation, keep, gain, additive, lsb, limit):
    """What `LoopTerms` does to freshly computed states x, in place."""
    for i in range(x.shape[0]):
        x[i] = impaired_value(x[i], before[i], saturation, keep[i], gain[i], additive[i], lsb, limit)


@jit(ORDERED)
def impair_nodes(x, before, loop, b, t, first):
    """`impair` for the nodes from `first` on, at step t of sequence b; `loop` is `LoopTerms` or None."""
    # Where there are no terms the kernels are compiled for None, and nothing of this is in them.
    if loop is not None:
        last = first + x.shape[0]
        impair(
            x, before, loop.saturation, loop.keep[first:last], loop.gain[first:last], loop.additive[b, t, first:last],
            loop.lsb, loop.limit,
        )  # fmt: skip


@jit(REORDERED)
def dense_rows(matrix, vector, begin, end, out):
    """out[begin:end] = matrix[begin:end] @ vector; both bounds are multiples of four."""
    zero = vector.dtype.type(0)
    for i in range(begin, end, 4):
        r0, r1, r2, r3 = matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]
        a0 = a1 = a2 = a3 = zero
        for j in range(vector.shape[0]):
            v = vector[j]
            a0 += number(r0[j]) * v
            a1 += number(r1[j]) * v
            a2 += number(r2[j]) * v
            a3 += number(r3[j]) * v
        out[i], out[i + 1], out[i + 2], out[i + 3] = a0, a1, a2, a3


@jit(ORDERED)
def activate_row(x, state, out, keep, gain, leaky, code, loop, b, t):
    """From the products x (nodes,) of sequence b at step t to its states, in `state` and `out`."""
    if code == RATIONAL_TANH and loop is None:
        for i in range(x.shape[0]):
            y = keep[i] * state[i] + gain[i] * rational_tanh(x[i])
            state[i] = y
            out[i] = y
        return
    activate(code, x)
    if leaky:
        leak(x, state, keep, gain)
    impair_nodes(x, state, loop, b, t, 0)
    for i in range(x.shape[0]):
        state[i] = x[i]
        out[i] = x[i]


@jit(REORDERED)
def sparse_rows(starts, columns, values, vector, begin, end, out):
    """out = (CSR matrix @ vector)[begin:end], rows padded to multiples of `GROUP`."""
    zero = vector.dtype.type(0)
    for i in range(begin, end):
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = zero
        for k in range(np.uint64(starts[i]), np.uint64(starts[i + 1]), _8):
            a0 += number(values[k]) * vector[columns[k]]
            a1 += number(values[k + _1]) * vector[columns[k + _1]]
            a2 += number(values[k + _2]) * vector[columns[k + _2]]
            a3 += number(values[k + _3]) * vector[columns[k + _3]]
            a4 += number(values[k + _4]) * vector[columns[k + _4]]
            a5 += number(values[k + _5]) * vector[columns[k + _5]]
            a6 += number(values[k + _6]) * vector[columns[k + _6]]
            a7 += number(values[k + _7]) * vector[columns[k + _7]]
        out[i - begin] = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))


@jit(ORDERED)
def add_input(input_rows, bias, u, begin, out):
    """out += (bias + u @ input_rows)[begin:...]."""
    count = out.shape[0]
    inputs = u.shape[0]
    whole = inputs // 4 * 4
    for i in range(count):
        out[i] += bias[begin + i]
    for k in range(0, whole, 4):
        u0, u1, u2, u3 = u[k], u[k + 1], u[k + 2], u[k + 3]
        w0, w1 = input_rows[k, begin : begin + count], input_rows[k + 1, begin : begin + count]
        w2, w3 = input_rows[k + 2, begin : begin + count], input_rows[k + 3, begin : begin + count]
        for i in range(count):
            out[i] += (w0[i] * u0 + w1[i] * u1) + (w2[i] * u2 + w3[i] * u3)
    for k in range(whole, inputs):
        u0, w0 = u[k], input_rows[k, begin : begin + count]
        for i in range(count):
            out[i] += w0[i] * u0


@jit(ORDERED)
def _sparse_block(
    starts, columns, values, input_rows, bias, u, before, out, keep, gain, leaky, code, loop, b, t, begin, end
):
    for first in range(begin, end, _BLOCK):
        last = min(first + _BLOCK, end)
        x = out[first:last]
        sparse_rows(starts, columns, values, before, first, last, x)
        add_input(input_rows, bias, u, first, x)
        activate(code, x)
        if leaky:
            leak(x, before[first:last], keep[first:last], gain[first:last])
        impair_nodes(x, before[first:last], loop, b, t, first)


@jit(ORDERED)
def sparse_serial(
    starts, columns, values, input_rows, bias, state, u, out, keep, gain, leaky, code, loop, b, begin, end
):
    """Steps begin..end of sequence b on one thread; W is CSR, `input_rows` W_in transposed."""
    for t in range(begin, end):
        before = out[b, t - 1] if t else state[b]
        _sparse_block(
            starts, columns, values, input_rows, bias, u[b, t], before, out[b, t], keep, gain, leaky, code, loop, b, t,
            0, out.shape[2],
        )  # fmt: skip


@jit(ORDERED, parallel=True)
def sparse_parallel(
    starts, columns, values, input_rows, bias, state, u, out, keep, gain, leaky, code, loop, b, begin, end, parts
):
    """As `sparse_serial`, the rows of each step shared out among threads."""
    nodes = out.shape[2]
    units = (nodes + LANES - 1) // LANES
    for t in range(begin, end):
        before = out[b, t - 1] if t else state[b]
        for part in numba.prange(parts):
            first = units * part // parts * LANES
            last = min(units * (part + 1) // parts * LANES, nodes)
            _sparse_block(
                starts, columns, values, input_rows, bias, u[b, t], before, out[b, t], keep, gain, leaky, code, loop, b,
                t, first, last,
            )  # fmt: skip


@jit(ORDERED)
def _sparse_batch_row(starts, columns, values, weights, offset, u, before, x, i):
    batch = x.shape[0]
    for b in range(batch):
        x[b] = offset
    for k in range(u.shape[0]):
        w0, s0 = weights[k], u[k]
        for b in range(batch):
            x[b] += w0 * s0[b]
    for k in range(np.uint64(starts[i]), np.uint64(starts[i + 1]), _8):
        w0, w1, w2, w3 = number(values[k]), number(values[k + _1]), number(values[k + _2]), number(values[k + _3])
        w4, w5, w6, w7 = number(values[k + _4]), number(values[k + _5]), number(values[k + _6]), number(values[k + _7])
        s0, s1, s2, s3 = before[columns[k]], before[columns[k + _1]], before[columns[k + _2]], before[columns[k + _3]]
        s4, s5, s6, s7 = (
            before[columns[k + _4]], before[columns[k + _5]], before[columns[k + _6]], before[columns[k + _7]]
        )  # fmt: skip
        for b in range(batch):
            x[b] += ((w0 * s0[b] + w1 * s1[b]) + (w2 * s2[b] + w3 * s3[b])) + (
                (w4 * s4[b] + w5 * s5[b]) + (w6 * s6[b] + w7 * s7[b])
            )


@jit(ORDERED)
def _sparse_batch_block(
    starts, columns, values, W_in, bias, u, before, out, keep, gain, leaky, code, loop, t, begin, end
):
    for i in range(begin, end):
        x, s = out[i], before[i]
        _sparse_batch_row(starts, columns, values, W_in[i], bias[i], u, before, x, i)
        activate(code, x)
        if leaky:
            k, g = keep[i], gain[i]
            for b in range(x.shape[0]):
                x[b] = k * s[b] + g * x[b]
        if loop is not None:
            k, g, additive = loop.keep[i], loop.gain[i], loop.additive[t, i]
            for b in range(x.shape[0]):
                x[b] = impaired_value(x[b], s[b], loop.saturation, k, g, additive[b], loop.lsb, loop.limit)


@jit(ORDERED, parallel=True)
def sparse_batch(starts, columns, values, W_in, bias, state, u, out, keep, gain, leaky, code, loop, begin, end, parts):
    """Steps begin..end of a batch, its arrays and the additive term of `loop` in the layout (time, nodes, batch)."""
    nodes = out.shape[1]
    for t in range(begin, end):
        before = out[t - 1] if t else state
        for part in numba.prange(parts):
            _sparse_batch_block(
                starts, columns, values, W_in, bias, u[t], before, out[t], keep, gain, leaky, code, loop, t,
                nodes * part // parts, nodes * (part + 1) // parts,
            )  # fmt: skip
