"""For all tests."""

from __future__ import annotations

import os

import pytest

# pytest-xdist sets it for its workers. Tables then have the same width with and without workers.
os.environ.pop("COLUMNS", None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that are marked `gpu` need a GPU that torch finds."""
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
