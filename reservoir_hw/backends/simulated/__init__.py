"""Simulated reservoirs: `Esn` with `EsnWeights`, drawn, loaded or from your own arrays."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.backends.simulated.esn.esn import Esn as Esn
    from reservoir_hw.networks import EsnWeights as EsnWeights
    from reservoir_hw.networks import draw_weights as draw_weights

__getattr__, __dir__ = lazy_names(__name__)
