"""Random networks: their topologies, how weights are drawn, scaled to a spectral radius, saved and loaded."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.networks.contractivity import (
        contractivity_bound,
        lipschitz_bound,
        matrix_norms,
        recurrent_norms,
        update_gate_range,
    )
    from reservoir_hw.networks.drawing import draw_weights
    from reservoir_hw.networks.gated_weights import GatedWeights, draw_gated_weights
    from reservoir_hw.networks.laerc_reservoirs import norm_scaled_weights, radius_schedule, reservoir_configurations
    from reservoir_hw.networks.language_weights import EsnArrays, dense_esn_weights, sparse_esn_weights
    from reservoir_hw.networks.topologies import (
        Block,
        CycleJumps,
        DelayLine,
        Orthogonal,
        Random,
        Ring,
        ScaleFree,
        SmallWorld,
    )
    from reservoir_hw.networks.weights import EsnWeights

__all__ = [
    "Block",
    "CycleJumps",
    "DelayLine",
    "EsnArrays",
    "EsnWeights",
    "GatedWeights",
    "Orthogonal",
    "Random",
    "Ring",
    "ScaleFree",
    "SmallWorld",
    "contractivity_bound",
    "dense_esn_weights",
    "draw_gated_weights",
    "draw_weights",
    "lipschitz_bound",
    "matrix_norms",
    "norm_scaled_weights",
    "radius_schedule",
    "recurrent_norms",
    "reservoir_configurations",
    "sparse_esn_weights",
    "update_gate_range",
]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("Block", "CycleJumps", "DelayLine", "Orthogonal", "Random", "Ring", "ScaleFree", "SmallWorld"),
            ".topologies",
        ),
        **dict.fromkeys(("EsnArrays", "dense_esn_weights", "sparse_esn_weights"), ".language_weights"),
        **dict.fromkeys(("norm_scaled_weights", "radius_schedule", "reservoir_configurations"), ".laerc_reservoirs"),
        **dict.fromkeys(
            ("contractivity_bound", "lipschitz_bound", "matrix_norms", "recurrent_norms", "update_gate_range"),
            ".contractivity",
        ),
        **dict.fromkeys(("GatedWeights", "draw_gated_weights"), ".gated_weights"),
        "EsnWeights": ".weights",
        "draw_weights": ".drawing",
    },
)
