"""Numpy arrays and torch tensors across the contract: callers get back the library and device they gave."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from reservoir_hw.core.errors import NotSupported, ShapeError, extra
from reservoir_hw.core.threads import share_with_torch

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = "np.ndarray | torch.Tensor"
else:
    Array: TypeAlias = Any

NO_NUMBER = 9e37
"""Instruments answer 9.9e37 for infinity, 9.91e37 for no number (SCPI 1999, Syntax and Style, 7.2.1)."""

# Values whose temporary array stays in the cache.
_BLOCK = 1 << 16


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch tensor, decided without importing torch."""
    if type(value) is np.ndarray:
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def import_torch(purpose: str, of: str = "sim") -> Any:
    """Torch, or one sentence that says how to get it: by the extra `of` this package."""
    with extra(of, f"{purpose} needs torch"):
        import torch
    share_with_torch()
    return torch


def to_numpy(value: Any, dtype: np.dtype[Any], name: str) -> np.ndarray:
    """A C-contiguous numpy array of `dtype`, copied only if necessary."""
    value = as_numpy(value)
    if type(value) is np.ndarray and value.dtype == dtype and value.flags.c_contiguous:
        return value
    return np.ascontiguousarray(_real(value, name), dtype=dtype)


def to_tensor(value: Any, dtype: np.dtype[Any], device: str, name: str) -> Any:
    """A contiguous tensor of `dtype` on `device`; gradients keep flowing through it."""
    torch = import_torch("this reservoir")
    if not is_tensor(value):
        array = np.ascontiguousarray(_real(value, name), dtype=dtype)
        # numpy calls an axis of one row contiguous, also where it runs backwards; torch takes no such array.
        taken = array.flags.writeable and min(array.strides, default=0) >= 0
        value = torch.from_numpy(array if taken else array.copy())
    if value.is_complex():
        raise ShapeError(f"{name} must hold real numbers, not {value.dtype}")
    return dense(value).to(device=device, dtype=getattr(torch, dtype.name)).contiguous()


def like(states: Any, given: Any) -> Any:
    """`states` in the library and on the device of `given`."""
    if not is_tensor(given):
        return as_numpy(states)
    if is_tensor(states):
        return states.to(given.device).contiguous()
    return to_tensor(states, states.dtype, str(given.device), "states")


def concatenate(parts: Sequence[Any], axis: int, out: Any = None) -> Any:
    """Arrays, or tensors, one behind the other; arrays in `out` where it is given."""
    if is_tensor(parts[0]):
        return import_torch("this reservoir").cat(list(parts), dim=axis)
    return np.concatenate(parts, axis=axis, out=out)


def contiguous(array: Any) -> Any:
    """The array or tensor with its last axis quickest and no gaps; copied only if needed."""
    return array.contiguous() if is_tensor(array) else np.ascontiguousarray(array)


def share_memory(native: Any, given: Any) -> bool:
    """Whether a change of `given` could show in `native`."""
    if is_tensor(native) and is_tensor(given):
        return native.layout == given.layout and native.data_ptr() == given.data_ptr()
    if is_tensor(native):
        return isinstance(given, np.ndarray) and np.may_share_memory(native.detach().cpu().numpy(), given)
    return isinstance(native, np.ndarray) and (is_tensor(given) or np.may_share_memory(native, given))


def all_finite(array: Any, below: float = math.inf) -> bool:
    """Whether no value is NaN or, in absolute value, `below` or more. One pass, no large temporary array."""
    if is_tensor(array):
        return bool((array.detach().abs() < below).all())
    if array.size <= _BLOCK:
        return _is_finite(array, below)
    if not array.flags.c_contiguous:
        return bool((np.abs(array) < below).all())
    flat = array.reshape(-1)
    return all(_is_finite(flat[start : start + _BLOCK], below) for start in range(0, flat.size, _BLOCK))


def _is_finite(array: np.ndarray, below: float) -> bool:
    # A small sum of squares proves it, and is quickest. That of large numbers may overflow, so a bad one is looked at.
    return float(np.vdot(array, array)) < below**2 or bool((np.abs(array) < below).all())


def as_numpy(array: Any) -> Any:
    """The values of a tensor as a numpy array, without their gradient; bfloat16, which numpy does not have, as float32.

    Masked values become NaN; anything else is returned as it is.
    """
    if is_tensor(array):
        values = dense(array.detach()).cpu()
        return (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    if type(array) is np.ndarray or not np.ma.is_masked(array):
        return array
    return array.astype(np.result_type(array.dtype, np.float16)).filled(np.nan)


def dense(tensor: Any) -> Any:
    """The tensor with all its numbers in memory. Raises `ShapeError` for one on the device "meta", which has none."""
    if tensor.is_meta:
        raise ShapeError('a tensor on the device "meta" holds no numbers: make it on another device')
    return tensor if tensor.layout == sys.modules["torch"].strided else tensor.to_dense()


def empty(shape: Sequence[int], dtype: np.dtype[Any], device: str | None) -> Any:
    """A tensor on `device`, or an array where that is None; what is in it is undefined."""
    if device is None:
        return np.empty(shape, dtype)
    torch = import_torch("this readout")
    return torch.empty(tuple(shape), dtype=getattr(torch, dtype.name), device=device)


def in_precision(array: Any, dtype: np.dtype[Any]) -> Any:
    """The array or tensor in this precision; copied only if needed."""
    if is_tensor(array):
        return array.to(getattr(sys.modules["torch"], dtype.name))
    return array.astype(dtype, copy=False)


def is_single(array: Any) -> bool:
    """Whether the numbers are float32."""
    return array.dtype == (sys.modules["torch"].float32 if is_tensor(array) else np.float32)


def is_floating(array: Any) -> bool:
    """Whether the numbers are floats, of any precision."""
    return array.is_floating_point() if is_tensor(array) else array.dtype.kind == "f"


def machine_epsilon(array: Any) -> float:
    """That of the floats of the array."""
    return float((sys.modules["torch"] if is_tensor(array) else np).finfo(array.dtype).eps)


def not_finite(array: Any, below: float = math.inf) -> np.ndarray:
    """Where there is NaN, or an absolute value of `below` or more: booleans of the same shape."""
    return ~as_numpy(abs(array) < below)


def first_true(mask: np.ndarray) -> tuple[int, ...]:
    """Index of the first true element."""
    return tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))


def limits_of(array: Any) -> tuple[float, float]:
    """Smallest and largest value."""
    if is_tensor(array):
        array = array.detach()
    return float(array.min()), float(array.max())


def node_limits(states: Any) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value of each node, (nodes,), over states (batch, time, nodes)."""
    if is_tensor(states):
        return as_numpy(states.amin((0, 1))), as_numpy(states.amax((0, 1)))
    return states.min(axis=(0, 1)), states.max(axis=(0, 1))


def refuse_gradient(value: Any) -> None:
    """Raise if a gradient is asked of a reservoir without gradients, instead of silently cutting the graph."""
    if is_tensor(value) and value.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise NotSupported(
            "the inputs require a gradient, but this reservoir is not differentiable; detach() them "
            "(or use torch.no_grad()), or choose a differentiable simulation (esn: gradients: true)"
        )


def _real(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(as_numpy(value))
    except ValueError as error:
        raise ShapeError(f"{name} cannot be read as an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name} must hold real numbers, not {array.dtype}")
    return array
