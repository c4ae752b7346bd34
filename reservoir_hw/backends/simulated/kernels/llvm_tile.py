"""The product of a tile in LLVM's own words: numba's vectoriser would not keep the sums in registers.

This stands on the inside of numba (`cgutils`, the layout of arrays), so `dense_batch` tries it before it uses it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from reservoir_hw.backends.simulated.kernels.compiled import ORDERED, ROWS, TILE_BYTES, jit


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
    """products = vectors @ panel, for `ROWS` vectors and one panel."""
    del typing_context

    def generate(context, builder, signature, arguments):
        left, right, result = (
            _Matrix(context, builder, type_, value) for type_, value in zip(signature.args, arguments, strict=True)
        )
        number = context.get_value_type(signature.args[0].dtype)
        lanes = TILE_BYTES // left.itemsize
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
def multiply_one_tile(vectors, panel, products):
    """`multiply_tile` as a function of its own, to try it with."""
    multiply_tile(vectors, panel, products)
