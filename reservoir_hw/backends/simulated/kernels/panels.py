"""Dense matrices in panels, and their products with state vectors.

A panel has all columns of some nodes. Each sum has its order, whatever is computed beside it: the states of a sequence
are the same bits alone, in every batch and in every division among threads.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.backends.simulated.kernels.compiled import (
    MOST_PANELS,
    ORDERED,
    RATIONAL_TANH,
    ROWS,
    SUMMED_COLUMNS,
    TILE_BYTES,
    activate,
    activate_row,
    impair_nodes,
    jit,
    leak,
    numba,
    number,
    rational_tanh,
)

Array = NDArray[Any]

log = logging.getLogger(__name__)


def panels_of(product: Array, dtype: np.dtype[Any]) -> Array:
    """The matrix (columns, nodes) cut into panels (panels, columns, width) as wide as a tile, the last filled with 0.

    `dtype` is what is calculated in; a float16 matrix is returned as its bits.
    """
    columns, nodes = product.shape
    width = TILE_BYTES // dtype.itemsize
    panels = _aligned_zeros((-(-nodes // width), columns, width), product.dtype)
    for panel, first in zip(panels, range(0, nodes, width), strict=True):
        part = product[:, first : first + width]
        panel[:, : part.shape[1]] = part
    return panels.view(np.uint16) if product.dtype == np.float16 else panels


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    # No load of a row then crosses a cache line, for up to 8 % more speed.
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + TILE_BYTES, np.uint8)
    first = -memory.ctypes.data % TILE_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)


@jit(ORDERED)
def plain_tile(vectors, panel, products):
    """products = vectors @ panel, for `ROWS` vectors and one panel: the same sums, two to four times as slow."""
    for row in range(vectors.shape[0]):
        plain_panel(vectors[row], panel, products[row])


@jit(ORDERED)
def plain_panels(vector, panels, products, first, count):
    """As `multiply_panels`, the same sums."""
    width = panels.shape[2]
    for panel in range(first, first + count):
        plain_panel(vector, panels[panel], products[panel * width : (panel + 1) * width])


@jit(ORDERED)
def plain_panel(vector, panel, total):
    """total = vector @ panel, the vector as long as the panel or longer."""
    width = panel.shape[1]
    part = np.empty_like(total)
    for lane in range(width):
        total[lane] = 0
    for begin in range(0, panel.shape[0], SUMMED_COLUMNS):
        for lane in range(width):
            part[lane] = 0
        for column in range(begin, min(begin + SUMMED_COLUMNS, panel.shape[0])):
            value, weights = vector[column], panel[column]
            for lane in range(width):
                part[lane] += value * number(weights[lane])
        for lane in range(width):
            total[lane] += part[lane]


def _products() -> tuple[Any, Any]:
    """The products of `llvm_products`, or the plain ones where this numba does not compile them."""
    try:
        from reservoir_hw.backends.simulated.kernels.llvm_products import (
            multiply_one_tile,
            multiply_panels,
            multiply_some_panels,
            multiply_tile,
        )

        width = TILE_BYTES // 4
        one, panel = np.ones((ROWS, width), np.float32), np.ones((width, width), np.float32)
        multiply_one_tile(one, panel, one.copy())
        multiply_some_panels(one[0], panel[None], one[0].copy())
    # Whatever the inside of another numba raises.
    except Exception as error:
        log.warning("this numba does not compile the quick products of dense networks, slower ones are used: %s", error)
        return plain_tile, plain_panels
    return multiply_tile, multiply_panels


# The names by which the kernels know them.
multiply_tile, multiply_panels = _products()


@jit(ORDERED)
def multiply(vector, panels, products, first, last, backwards):
    """products = vector @ panels, for the panels first..last.

    `backwards` takes the panels from the last on: they are those that a cache still has of the step before.
    """
    groups = (last - first + MOST_PANELS - 1) // MOST_PANELS
    for group in range(groups):
        place = groups - 1 - group if backwards else group
        begin = first + (last - first) * place // groups
        end = first + (last - first) * (place + 1) // groups
        multiply_panels(vector, panels, products, begin, end - begin)


# ---- Batched steps of a dense network: a matrix product of our own, compiled by numba.
#
# BLAS would share every small product out among threads of its own, and these wait for one another at every step and
# spin beside torch's. Here a thread drives some of the sequences through all of their steps alone.


@jit(ORDERED)
def dense_batch(panels, vectors, products, u, out, keep, gain, leaky, code, loop, first, last):
    """All steps of the sequences first..last of a batch on one thread; `first` is a multiple of `ROWS`.

    `panels` hold [W | W_in | b] transposed. `vectors` (sequences, columns) hold state, input and the 1 of the bias;
    they and `products` (sequences, nodes of all panels) have a multiple of `ROWS` rows. u and out are
    (batch, time, ...).
    """
    nodes, inputs, width = out.shape[2], u.shape[2], panels.shape[2]
    for t in range(u.shape[1]):
        for b in range(first, last):
            for i in range(inputs):
                vectors[b, nodes + i] = u[b, t, i]
        for p in range(panels.shape[0]):
            for b in range(first, last, ROWS):
                multiply_tile(vectors[b : b + ROWS], panels[p], products[b : b + ROWS, p * width : (p + 1) * width])
        for b in range(first, last):
            activate_row(products[b, :nodes], vectors[b, :nodes], out[b, t], keep, gain, leaky, code, loop, b, t)


# ---- Steps of a dense network, one sequence at a time, compiled by numba.


@jit(ORDERED, inline=True)
def _set_input(now, u, nodes, t):
    """Behind the state that step t reads, its input and the 1 of the bias."""
    for k in range(u.shape[1]):
        now[nodes + k] = u[t, k]
    now[nodes + u.shape[1]] = 1


@jit(ORDERED, inline=True)
def _some_panels(panels, now, following, products, out, keep, gain, leaky, code, loop, b, t, first, last):
    """The nodes of the panels first..last at step t, from `now` to `following` and to `out`."""
    multiply(now, panels, products, first, last, t & 1)
    begin, end = first * panels.shape[2], last * panels.shape[2]
    stop = min(end, out.shape[1])
    if code == RATIONAL_TANH and loop is None:
        # The usual case in one pass and in whole vectors: for a small network the passes cost as much as the product.
        # What stands behind the last node is written anew before it is read.
        for i in range(begin, end):
            following[i] = keep[i] * now[i] + gain[i] * rational_tanh(products[i])
    else:
        _other_states(now, following, products, keep, gain, leaky, code, loop, b, t, begin, stop)
    for i in range(begin, stop):
        out[t, i] = following[i]


# A function of its own: slices of arrays cost the counting of references, for small networks as much as the product.
@jit(ORDERED)
def _other_states(now, following, products, keep, gain, leaky, code, loop, b, t, begin, stop):
    x, before = products[begin:stop], now[begin:stop]
    activate(code, x)
    if leaky:
        leak(x, before, keep[begin:stop], gain[begin:stop])
    impair_nodes(x, before, loop, b, t, begin)
    for i in range(begin, stop):
        following[i] = products[i]


@jit(ORDERED)
def dense_serial(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, begin, end):
    """Steps begin..end of sequence b on one thread.

    `panels` hold [W | W_in | b] transposed; `vectors` (batch, 2, columns) state, input and the 1 of the bias, read and
    written in turn; `products` is (batch, nodes of all panels), u and out are (batch, time, ...). `keep`, `gain` and
    `vectors` are as long as all panels are wide, or longer.
    """
    even, odd, products, u, out = vectors[b, 0], vectors[b, 1], products[b], u[b], out[b]
    count, nodes = panels.shape[0], out.shape[1]
    for t in range(begin, end):
        if t & 1:
            _set_input(odd, u, nodes, t)
            _some_panels(panels, odd, even, products, out, keep, gain, leaky, code, loop, b, t, 0, count)
        else:
            _set_input(even, u, nodes, t)
            _some_panels(panels, even, odd, products, out, keep, gain, leaky, code, loop, b, t, 0, count)


@jit(ORDERED, parallel=True)
def dense_parallel(panels, vectors, products, u, out, keep, gain, leaky, code, loop, b, begin, end, parts):
    """As `dense_serial`, the panels of each step shared out among threads."""
    vectors, products, u, out, count = vectors[b], products[b], u[b], out[b], panels.shape[0]
    for t in range(begin, end):
        now, following = vectors[t & 1], vectors[1 - (t & 1)]
        _set_input(now, u, out.shape[1], t)
        for part in numba.prange(parts):
            first, last = count * part // parts, count * (part + 1) // parts
            _some_panels(panels, now, following, products, out, keep, gain, leaky, code, loop, b, t, first, last)
