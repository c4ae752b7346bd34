"""Products of a dense matrix in LLVM's own words: numba's vectoriser would not keep the sums in registers.

This stands on the inside of numba (`cgutils`, the layout of arrays), so `panels` tries it before it uses it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from reservoir_hw.backends.simulated.kernels.compiled import (
    MOST_PANELS,
    ORDERED,
    ROWS,
    SUMMED_COLUMNS,
    TILE_BYTES,
    jit,
)

_INT = ir.IntType(64)


class _Array:
    """An array inside generated code; the numbers of its last axis lie side by side."""

    def __init__(self, context: Any, builder: Any, type_: Any, value: Any) -> None:
        array = context.make_array(type_)(context, builder, value)
        self._builder, self._data = builder, array.data
        self._stride = cgutils.unpack_tuple(builder, array.strides)[0]
        self.shape = cgutils.unpack_tuple(builder, array.shape)
        self.itemsize = type_.dtype.bitwidth // 8
        self._number = ir.HalfType() if self.itemsize == 2 else context.get_value_type(type_.dtype)
        # A panel has as many numbers side by side as there are in TILE_BYTES of what is calculated in.
        self.vector = ir.VectorType(self._number, TILE_BYTES // max(self.itemsize, 4))

    def at(self, index: Any) -> Any:
        """A pointer to the numbers with this first index."""
        return self._pointer(index, self._number)

    def panel_at(self, index: Any) -> Any:
        """A pointer to the vectors with this first index."""
        return self._pointer(index, self.vector)

    def _pointer(self, index: Any, type_: Any) -> Any:
        offset = self._builder.mul(self._stride, index)
        return cgutils.pointer_add(self._builder, self._data, offset, type_.as_pointer())


def _multiply_tile(typing_context, vectors, panel, products):
    """products = vectors @ panel, for `ROWS` vectors and one panel."""
    del typing_context

    def generate(context, builder, signature, arguments):
        left, right, result = _arrays(context, builder, signature, arguments)
        rows, zero = [_INT(row) for row in range(ROWS)], _INT(0)
        sums = _products(builder, [left.at(row) for row in rows], [right.panel_at(zero)], right.shape[0], left)
        for row, (total,) in zip(rows, sums, strict=True):
            builder.store(total, result.panel_at(row), align=result.itemsize)
        return context.get_dummy_value()

    return types.void(vectors, panel, products), generate


def _multiply_panels(typing_context, vector, panels, products, first, count):
    """products = vector @ panels, for the `count` panels from `first` on, at most `MOST_PANELS`.

    `products` has as many numbers as all panels are wide.
    """
    del typing_context

    def generate(context, builder, signature, arguments):
        left, right, result = _arrays(context, builder, signature, arguments)
        first, count = arguments[-2:]
        after = builder.append_basic_block("after")
        choice = builder.switch(count, after)
        for at_once in range(1, MOST_PANELS + 1):
            block = builder.append_basic_block(f"panels{at_once}")
            choice.add_case(_INT(at_once), block)
            builder.position_at_end(block)
            places = [builder.add(first, _INT(panel)) for panel in range(at_once)]
            weights = [right.panel_at(place) for place in places]
            (sums,) = _products(builder, [left.at(_INT(0))], weights, right.shape[1], left)
            for place, total in zip(places, sums, strict=True):
                builder.store(total, builder.gep(result.panel_at(_INT(0)), [place]), align=result.itemsize)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(vector, panels, products, types.int64, types.int64), generate


def _arrays(context: Any, builder: Any, signature: Any, arguments: Any) -> list[_Array]:
    given = zip(signature.args, arguments, strict=True)
    return [_Array(context, builder, type_, value) for type_, value in given if isinstance(type_, types.Array)]


def _products(builder: Any, vectors: list[Any], panels: list[Any], columns: Any, left: _Array) -> list[list[Any]]:
    """Of each vector with each panel, in the order of `plain_panel`."""
    totals = _zeros(builder, vectors, panels, left)
    step = _INT(SUMMED_COLUMNS)
    with cgutils.for_range_slice(builder, _INT(0), columns, step) as (begin, _):
        end = builder.add(begin, step)
        end = builder.select(builder.icmp_signed("<", end, columns), end, columns)
        sums = _zeros(builder, vectors, panels, left)
        with cgutils.for_range(builder, end, begin) as loop:
            weights = [_load_weights(builder, builder.gep(panel, [loop.index]), left) for panel in panels]
            for vector, row in zip(vectors, sums, strict=True):
                value = _repeated(builder, builder.load(builder.gep(vector, [loop.index])), left)
                for weight, place in zip(weights, row, strict=True):
                    _add(builder, builder.fmul(value, weight, flags=("contract",)), place)
        for row, places in zip(sums, totals, strict=True):
            for total, place in zip(row, places, strict=True):
                _add(builder, builder.load(total), place)
    return [[builder.load(place) for place in places] for places in totals]


def _zeros(builder: Any, vectors: list[Any], panels: list[Any], left: _Array) -> list[list[Any]]:
    """Places for the sums of each vector with each panel; LLVM makes them registers."""
    zeros = ir.Constant(left.vector, None)
    return [[cgutils.alloca_once_value(builder, zeros) for _ in panels] for _ in vectors]


def _add(builder: Any, term: Any, place: Any) -> None:
    builder.store(builder.fadd(builder.load(place), term, flags=("contract",)), place)


def _repeated(builder: Any, value: Any, left: _Array) -> Any:
    """A number in every lane."""
    first_lane = ir.Constant(ir.VectorType(ir.IntType(32), left.vector.count), None)
    one = builder.insert_element(ir.Constant(left.vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, first_lane)


def _load_weights(builder: Any, pointer: Any, left: _Array) -> Any:
    weights = builder.load(pointer, align=2)
    return weights if weights.type == left.vector else builder.fpext(weights, left.vector)


multiply_tile: Any = intrinsic(_multiply_tile)
multiply_panels: Any = intrinsic(_multiply_panels)


@jit(ORDERED)
def multiply_one_tile(vectors, panel, products):
    """`multiply_tile` as a function of its own, to try it with."""
    multiply_tile(vectors, panel, products)


@jit(ORDERED)
def multiply_some_panels(vector, panels, products):
    """`multiply_panels` as a function of its own, to try it with."""
    multiply_panels(vector, panels, products, 0, panels.shape[0])
