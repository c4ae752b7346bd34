"""Random networks: their topologies, how weights are drawn, scaled to a spectral radius, saved and loaded."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.networks.drawing import draw_weights
    from reservoir_hw.networks.gated_weights import GatedWeights, draw_gated_weights
    from reservoir_hw.networks.weights import EsnWeights

__all__ = ["EsnWeights", "GatedWeights", "draw_gated_weights", "draw_weights"]

__getattr__ = lazy_names(
    __name__,
    {
        "EsnWeights": ".weights",
        "GatedWeights": ".gated_weights",
        "draw_gated_weights": ".gated_weights",
        "draw_weights": ".drawing",
    },
)
