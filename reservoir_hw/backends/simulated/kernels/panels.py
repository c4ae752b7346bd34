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
    ROWS,
    SUMMED_COLUMNS,
    TILE_BYTES,
    jit,
    number,
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
