"""Numbers on the wire: within half a step, or refused."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw.core.errors import InputRangeError, ProtocolError
from reservoir_hw.drivers.codes import Encoding, checked_encoding

# The machine may be busy with other tests.
unhurried = settings(deadline=None)


@unhurried
@given(
    st.sampled_from([3, 4, 5]),
    st.floats(1e-6, 1e3),
    arrays.arrays(np.float64, st.integers(0, 20), elements=st.floats(-1, 1)),
)
def test_integers_are_within_half_a_step(dtype: int, scale: float, fractions: np.ndarray) -> None:
    encoding = checked_encoding(dtype, scale)
    values = fractions * (np.iinfo(encoding.number).max * scale)
    numbers = encoding.encode(values)
    assert numbers.dtype == encoding.number
    decoded = np.empty_like(values)
    encoding.decode(numbers, decoded)
    rounding = 4 * np.finfo(np.float64).eps * np.abs(values)
    assert np.all(np.abs(decoded - values) <= 0.5 * scale + rounding)
    # What was decoded is a number of the wire: it goes back and forth as it is.
    assert np.array_equal(encoding.encode(decoded), numbers)


@unhurried
@given(st.sampled_from([3, 4, 5]), st.floats(1e-6, 1e3), st.floats(1.01, 1e30), st.booleans())
def test_what_integers_cannot_hold_is_refused(dtype: int, scale: float, factor: float, negative: bool) -> None:
    encoding = Encoding(dtype, scale)
    limits = np.iinfo(encoding.number)
    value = scale * factor * (limits.min if negative else limits.max)
    with pytest.raises(InputRangeError, match="do not fit"):
        encoding.encode(np.array([0.0, value]))
    with pytest.raises(InputRangeError):
        encoding.encode(np.array([0.0, np.nan]))


@unhurried
@given(st.sampled_from([1, 2]), st.data())
def test_floating_point_numbers_are_sent_as_they_are(dtype: int, data: st.DataObject) -> None:
    encoding = Encoding(dtype)
    values = data.draw(arrays.arrays(encoding.number, (3, 2), elements={"allow_nan": False}))
    decoded = np.empty_like(values)
    encoding.decode(encoding.encode(values), decoded)
    assert np.array_equal(decoded, values)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(0, 1.0), (6, 1.0), ("3", 1.0), (True, 1.0), (3, 0), (3, -1.0), (3, np.inf), (3, None), (1, 0.5)],
)
def test_encodings_that_there_are_not(dtype: Any, scale: Any) -> None:
    with pytest.raises(ProtocolError):
        checked_encoding(dtype, scale)
