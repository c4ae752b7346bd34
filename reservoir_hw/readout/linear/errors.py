"""What only readouts have to say: not solved yet, solved but hardly determined."""

from __future__ import annotations

from reservoir_hw.core.errors import ReservoirError


class NotSolved(ReservoirError, RuntimeError):
    """The readout has no weights yet; the message says which method computes them."""


class IllConditionedWarning(RuntimeWarning):
    """The weights were computed, but rounding errors decide about some of them; `report_` has the figures."""
