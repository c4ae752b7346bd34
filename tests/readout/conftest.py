from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """For what a test opens."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def seeded() -> None:
    """New modules begin with the same weights in every test."""
    import torch

    torch.manual_seed(1)
