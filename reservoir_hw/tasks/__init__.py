"""What a reservoir is driven with."""

from reservoir_hw.tasks._data import dataset

__all__ = ["dataset"]
