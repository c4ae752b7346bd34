from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Sums must not depend on how many threads they are split over."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _drawn_where_a_test_looks(no_pictures: None) -> None:
    """The figure of the losses is for tests that ask for `pictures`."""
