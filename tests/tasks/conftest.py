from __future__ import annotations

import os

import pytest

from reservoir_hw.tasks import datasets


@pytest.fixture
def shared_data() -> None:
    """Skips where no folder with the data sets is at hand: the tests do not download."""
    folder = os.environ.get(datasets.FOLDER_VARIABLE)
    if not folder:
        pytest.skip(f"{datasets.FOLDER_VARIABLE} names no folder with data sets")
