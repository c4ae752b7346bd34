"""What a reservoir is driven with."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.tasks.datasets import dataset

__all__ = ["dataset"]

__getattr__ = lazy_names(__name__, {"dataset": ".datasets"})
