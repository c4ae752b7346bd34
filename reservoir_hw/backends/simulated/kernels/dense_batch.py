"""Batched steps of a dense network: a matrix product of our own, compiled by numba.

BLAS would share every small product out among threads of its own, and these wait for one another at every step and
spin beside torch's. Here a thread drives some of the sequences through all of their steps alone.

Each product is summed over the columns in order, whatever is computed beside it: the states of a sequence are the
same bits in every batch, chunk and division among threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from reservoir_hw.backends.simulated.kernels.compiled import ORDERED, activate_row, jit

Array = NDArray[Any]

# Sequences in a tile. With the bytes below its sums are eight registers of AVX2: as many as hide the latency of a
# multiplication, and few enough to leave registers for the operands.
ROWS = 4
_TILE_BYTES = 64


def panels_of(product: Array, dtype: np.dtype[Any]) -> Array:
    """The matrix (columns, nodes) cut into panels (panels, columns, width) as wide as a tile, the last filled with 0.

    `dtype` is what is calculated in; a float16 matrix is returned as its bits.
    """
    columns, nodes = product.shape
    width = _TILE_BYTES // dtype.itemsize
    panels = _aligned_zeros((-(-nodes // width), columns, width), product.dtype)
    for panel, first in zip(panels, range(0, nodes, width), strict=True):
        part = product[:, first : first + width]
        panel[:, : part.shape[1]] = part
    return panels.view(np.uint16) if product.dtype == np.float16 else panels


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    # No load of a row then crosses a cache line, for up to 8 % more speed.
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + _TILE_BYTES, np.uint8)
    first = -memory.ctypes.data % _TILE_BYTES
    return memory[first : first + size].view(dtype).reshape(shape)


class _Matrix:
    """A two-dimensional array inside generated code."""

    def __init__(self, context: Any, builder: Any, type_: Any, value: Any) -> None:
        array = context.make_array(type_)(context, builder, value)
        self._builder, self._data = builder, array.data
        self._stride = cgutils.unpack_tuple(builder, array.strides)[0]
        self.columns = cgutils.unpack_tuple(builder, array.shape)[0]
        self.itemsize = type_.dtype.bitwidth // 8

    def row(self, index: Any, type_: Any) -> Any:
        """A pointer to a row."""
        return cgutils.pointer_add(
            self._builder, self._data, self._builder.mul(self._stride, index), type_.as_pointer()
        )


def _multiply_tile(typing_context, vectors, panel, products):
    """products = vectors @ panel, for `ROWS` vectors and one panel.

    In LLVM's own words, because its vectoriser would not keep the sums in registers.
    """
    del typing_context

    def generate(context, builder, signature, arguments):
        left, right, result = (
            _Matrix(context, builder, type_, value) for type_, value in zip(signature.args, arguments, strict=True)
        )
        number = context.get_value_type(signature.args[0].dtype)
        lanes = _TILE_BYTES // left.itemsize
        vector = ir.VectorType(number, lanes)
        rows = [ir.IntType(64)(row) for row in range(ROWS)]
        sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in rows]
        sources = [left.row(row, number) for row in rows]
        first_lane = ir.Constant(ir.VectorType(ir.IntType(32), lanes), None)
        with cgutils.for_range(builder, right.columns) as loop:
            weights = _load_weights(builder, right, loop.index, vector)
            for total, source in zip(sums, sources, strict=True):
                value = builder.load(builder.gep(source, [loop.index]))
                value = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
                value = builder.shuffle_vector(value, value, first_lane)
                term = builder.fmul(value, weights, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), term, flags=("contract",)), total)
        for row, total in zip(rows, sums, strict=True):
            builder.store(builder.load(total), result.row(row, vector), align=result.itemsize)
        return context.get_dummy_value()

    return types.void(vectors, panel, products), generate


def _load_weights(builder: Any, panel: _Matrix, index: Any, vector: Any) -> Any:
    if panel.itemsize > 2:
        return builder.load(panel.row(index, vector), align=panel.itemsize)
    halves = ir.VectorType(ir.HalfType(), vector.count)
    return builder.fpext(builder.load(panel.row(index, halves), align=panel.itemsize), vector)


multiply_tile: Any = intrinsic(_multiply_tile)


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
