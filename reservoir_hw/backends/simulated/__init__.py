"""Simulated reservoirs: `Esn` with `EsnWeights`, drawn, loaded or from your own arrays."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.backends.simulated.esn.esn import Esn
    from reservoir_hw.networks import EsnWeights, draw_weights

__all__ = ["Esn", "EsnWeights", "draw_weights"]

__getattr__ = lazy_names(
    __name__,
    {
        "Esn": ".esn.esn",
        "EsnWeights": "reservoir_hw.networks",
        "draw_weights": "reservoir_hw.networks",
    },
)
