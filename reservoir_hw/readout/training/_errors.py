"""What can go wrong in training and nowhere else."""

from __future__ import annotations

from reservoir_hw.core.errors import ReservoirError


class NotFinite(ReservoirError, FloatingPointError):
    """The loss or a gradient is NaN or infinite. `step` is the step in which it was met; it changed no weight."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step
