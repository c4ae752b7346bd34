"""Batched steps of a dense network: a matrix product of our own, compiled by numba.

BLAS would share every small product out among threads of its own, and these wait for one another at every step and
spin beside torch's. Here a thread drives some of the sequences through all of their steps alone.

Each product is summed over the columns in order, whatever is computed beside it: the states of a sequence are the
same bits in every batch, chunk and division among threads.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.backends.simulated.kernels.compiled import ORDERED, ROWS, TILE_BYTES, activate_row, jit, number

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
        total = products[row]
        for lane in range(panel.shape[1]):
            total[lane] = 0
        for column in range(panel.shape[0]):
            value, weights = vectors[row, column], panel[column]
            for lane in range(panel.shape[1]):
                total[lane] += value * number(weights[lane])


def _tile_product() -> Any:
    """`llvm_tile.multiply_tile`, or `plain_tile` where this numba does not compile it."""
    try:
        from reservoir_hw.backends.simulated.kernels.llvm_tile import multiply_one_tile, multiply_tile

        width = TILE_BYTES // 4
        one = np.ones((ROWS, width), np.float32)
        multiply_one_tile(one, np.ones((width, width), np.float32), one.copy())
    # Whatever the inside of another numba raises.
    except Exception as error:
        log.warning("this numba does not compile the quick product of batches, a slower one is used: %s", error)
        return plain_tile
    return multiply_tile


# The name by which the kernel knows it.
multiply_tile = _tile_product()


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
