"""Series in tables of pandas and arrays of xarray: channels by their names, and answers of the kind that was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import ConfigurationError, ShapeError


def is_array(value: Any) -> bool:
    """Whether this is an array, a tensor, a table or a list of such, and no setting."""
    if isinstance(value, list | tuple):
        return bool(value) and all(is_array(one) for one in value)
    return getattr(value, "ndim", 0) > 0 and (hasattr(value, "__array__") or hasattr(value, "to_numpy"))


def series_of(X: Any) -> Any:
    """Series as they were given. Raises `ShapeError` for what is none."""
    if not (is_array(X) or isinstance(X, Mapping | str)) and (hasattr(X, "__array__") or isinstance(X, list | tuple)):
        X = np.asarray(X)
    if hasattr(X, "toarray") or not is_array(X):
        raise ShapeError(
            f"{type(X).__name__} is no series: give an array (time, channels), a table, or a list of them, not sparse"
        )
    if "complex" in str(getattr(X, "dtype", "")):
        raise ShapeError("Complex data not supported: give real numbers")
    return X


def with_columns(X: Any, names: Sequence[str], what: str) -> Any:
    """Tables, and DataArrays with named channels, with the columns of the training in their order.

    Without `names` they stay as they are. Raises `ConfigurationError` that names `what` where a column is missing.
    """
    if isinstance(X, list | tuple):
        return [with_columns(one, names, what) for one in X]
    there = {str(column): column for column in columns_of(X)}
    if not len(names) or not there:
        return X
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigurationError(f"{what} has no column {missing[0]!r}, which the model was trained with")
    wanted = [there[name] for name in names]
    return X[wanted] if hasattr(X, "columns") else X.sel({X.dims[-1]: wanted})


def columns_of(X: Any) -> list[Any]:
    """What a table, or a DataArray of xarray, calls its channels; nothing for others."""
    if hasattr(X, "columns"):
        return list(X.columns)
    dims = getattr(X, "dims", ())
    return X.coords[dims[-1]].values.tolist() if len(dims) > 1 and dims[-1] in X.coords else []


def as_given(answer: np.ndarray, one: Any, names: Sequence[str]) -> Any:
    """Answers (time, outputs), or (time,), to a series, in the library of that series: tables with the same index.

    `names` are those of the outputs.
    """
    flat = answer.ndim == 1
    if hasattr(one, "columns") or hasattr(one, "to_frame"):
        table = type(one if hasattr(one, "columns") else one.to_frame())
        frame = table(answer[:, None] if flat else answer, index=one.index, columns=list(names))
        return frame[names[0]] if flat else frame
    if hasattr(one, "dims"):
        dims, coords = (one.dims[0],) if flat else (one.dims[0], "output"), {} if flat else {"output": list(names)}
        if one.dims[0] in one.coords:
            coords[one.dims[0]] = one.coords[one.dims[0]]
        return type(one)(answer, dims=dims, coords=coords)
    return arrays.like(answer, one)
