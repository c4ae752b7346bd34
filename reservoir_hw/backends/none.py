"""No reservoir: for models that bring their own recurrence (`readout: {kind: esn_lm}`)."""

from __future__ import annotations

from typing import Literal, NoReturn

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import ReservoirConfig


class NoReservoirConfig(ReservoirConfig):
    """No reservoir: for readouts that have their own."""

    is_computed = True

    kind: Literal["none"]

    def for_inputs(self, inputs: int | Channels) -> NoReturn:
        """Raises `ConfigurationError`: who asks needs a reservoir."""
        raise ConfigurationError(
            f"kind none is no reservoir, and {Channels.of(inputs).count} inputs have nowhere to go: name one"
        )

    def build(self) -> NoReturn:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("kind none is no reservoir: there is nothing to open")
