from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _drawn_where_a_test_looks(one_thread: None, no_pictures: None) -> None:
    """The figure of the losses is for tests that ask for `pictures`."""
