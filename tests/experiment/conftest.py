"""For tests of experiments."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _drawn_where_a_test_looks(no_pictures: None) -> None:
    """Figures and reports are for tests that ask for `pictures`."""
