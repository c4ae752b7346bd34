"""The way of a caller's array to the device: library and dtype, shape, mask, range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import InputRangeError, ShapeError
from reservoir_hw.core.signal import Mask
from reservoir_hw.core.spec import Counters, ReservoirSpec

OutOfRange = Literal["error", "clip"]


class Inputs:
    """What a reservoir makes of the arrays that callers give, before its device gets them.

    Parameters
    ----------
    outer, inner
        What the reservoir declares to its callers, and what the device itself takes behind the mask.
    mask
        Spreads the callers' channels over the device's inputs; None: there is none.
    library, device
        Where the backend computes: "numpy", or "torch" on this device.
    out_of_range
        What becomes of values outside the device's range: refused, or clipped and counted in `counters`.
    limited
        Whether the device's range is looked at.
    check
        What the backend checks beyond that: gets the device's own inputs, and raises where it cannot take them.
    """

    def __init__(
        self,
        outer: ReservoirSpec,
        inner: ReservoirSpec,
        mask: Mask | None,
        *,
        library: Literal["numpy", "torch"],
        device: str,
        out_of_range: OutOfRange,
        limited: bool,
        counters: Counters,
        check: Callable[[Any], None],
    ) -> None:
        self.mask = mask
        self._spec, self._library, self._device = outer, library, device
        self._dtype = outer.numpy_dtype
        self._name, self._out_of_range, self._counters = inner.identity.name, out_of_range, counters
        self._check = check
        limits = inner.input_range if limited else None
        # The limits as this dtype has them: a float32 0.1 lies within [-0.1, 0.1].
        self._limits = None if limits is None else tuple(float(self._dtype.type(limit)) for limit in limits)

    def to_native(self, value: Any, name: str) -> Any:
        """An array or tensor as the backend takes it."""
        if not self._spec.differentiable:
            arrays.refuse_gradient(value)
        if self._library == "torch":
            return arrays.to_tensor(value, self._dtype, self._device, name)
        return arrays.to_numpy(value, self._dtype, name)

    def is_native(self, out: Any) -> bool:
        """Whether a backend can fill `out` itself."""
        if out is None or arrays.is_tensor(out) != (self._library == "torch"):
            return False
        if arrays.is_tensor(out):
            return str(out.device) == self._device and out.is_contiguous()
        return out.flags.c_contiguous

    def shaped(self, u: Any, batch: int) -> Any:
        """Native inputs (batch, time, inputs), or a `ShapeError`."""
        native = self.to_native(u, "inputs")
        if native.ndim != 3:
            raise ShapeError(
                f"inputs must be (batch, time, inputs), not {tuple(native.shape)}; "
                "one series (time, inputs) is taken after reset(1), and is u[None]"
            )
        if native.shape[2] != self._spec.inputs:
            raise ShapeError(
                f"inputs have {native.shape[2]} channels, {self._name} takes {self._spec.inputs} "
                f"(inputs are (batch, time, inputs) = {tuple(native.shape)})"
            )
        if native.shape[0] != batch:
            raise ShapeError(
                f"inputs hold {native.shape[0]} sequences, but the reservoir was reset for {batch}: "
                f"call reset({native.shape[0]}) first"
            )
        return native

    def for_device(self, u: Any) -> Any:
        """What the device gets for native inputs (batch, time, inputs): finite, behind the mask, within its range.

        Raises `InputRangeError` that names the first value which is none of this, unless it is clipped and counted.
        """
        if not arrays.all_finite(u):
            where = arrays.first_true(arrays.not_finite(u))
            raise InputRangeError(
                f"input at (sequence, step, channel) = {where} is {float(u[where])} (or masked), not a number"
            )
        inner = self.within_limits(u if self.mask is None else _masked(self.mask, u))
        self._check(inner)
        return inner

    def within_limits(self, u: Any) -> Any:
        """The device's own inputs, checked or clipped."""
        if self._limits is None or u.shape[1] == 0:
            return u
        low, high = self._limits
        smallest, largest = arrays.limits_of(u)
        if low <= smallest and largest <= high:
            return u
        outside = arrays.as_numpy((u < low) | (u > high))
        if self._out_of_range == "clip":
            self._counters.clipped += int(outside.sum())
            return u.clip(low, high)
        where = arrays.first_true(outside)
        raise InputRangeError(
            f"input at (sequence, step, channel) = {where} is {float(u[where]):g}, outside the range "
            f"[{low:g}, {high:g}] of {self._name} ({int(outside.sum())} values are); scale the inputs, or set "
            "out_of_range: clip to have them clipped and counted"
        )

    def check_out(self, out: Any, shape: Any) -> None:
        """Raise `ShapeError` unless `out` can take the states of inputs of this shape."""
        if out is None:
            return
        expected = (*shape[:2], self._spec.nodes)
        # numpy makes the name of a dtype at every use. That takes longer than the rest of a call.
        known = type(out) is np.ndarray and out.dtype == self._dtype
        dtype = self._spec.dtype if known else str(getattr(out, "dtype", None)).removeprefix("torch.")
        if tuple(getattr(out, "shape", ())) != expected or dtype != self._spec.dtype:
            raise ShapeError(
                f"out must be {expected} of {self._spec.dtype}, not {tuple(getattr(out, 'shape', ()))} of {dtype}"
            )
        given: Any = out
        if given.requires_grad if arrays.is_tensor(out) else not given.flags.writeable:
            raise ShapeError("out cannot be written to: it is read-only, or a tensor that requires a gradient")


def _masked(mask: Mask, u: Any) -> Any:
    if not arrays.is_tensor(u):
        return mask.apply(u)
    matrix, bias = (arrays.import_torch("this reservoir").tensor(a).to(u) for a in (mask.matrix, mask.bias))
    masked = bias
    for k in range(mask.inputs):
        # Channel after channel: a matrix product would round by the number of rows.
        masked = masked + u[..., k, None] * matrix[:, k]
    return masked
