"""What JUnit is told about each test on a device."""

from __future__ import annotations

from typing import Any

import pytest

from reservoir_hw.core.errors import DeviceError, StateLost
from reservoir_hw.testing import plugin


def is_fault(error: BaseException) -> bool:
    """Whether the device must be recovered before the next test."""
    return isinstance(error, DeviceError | StateLost | KeyboardInterrupt)


def put(item: pytest.Item, first_error: str) -> None:
    """Replace our properties of a test by those of now."""
    found: dict[str, Any] = {"attempts": getattr(item, "execution_count", 1)}
    if first_error:
        found["first_error"] = first_error
    device = getattr(item, "funcargs", {}).get("reservoir_device")
    if device is not None:
        found.update(device.facts())
    statement = item.stash.get(plugin.STATEMENT, None)
    if statement is not None:
        found["outcome"] = statement.outcome
    item.user_properties[:] = [pair for pair in item.user_properties if pair[0] not in found] + list(found.items())
