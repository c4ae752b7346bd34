"""Random networks: their topologies, how weights are drawn, scaled to a spectral radius, saved and loaded."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.networks.language_weights import EsnArrays as EsnArrays
    from reservoir_hw.networks.language_weights import dense_esn_weights as dense_esn_weights
    from reservoir_hw.networks.language_weights import norm_scaled_weights as norm_scaled_weights
    from reservoir_hw.networks.language_weights import radius_schedule as radius_schedule
    from reservoir_hw.networks.language_weights import reservoir_configurations as reservoir_configurations
    from reservoir_hw.networks.language_weights import sparse_esn_weights as sparse_esn_weights
    from reservoir_hw.networks.topologies import Block as Block
    from reservoir_hw.networks.topologies import CycleJumps as CycleJumps
    from reservoir_hw.networks.topologies import DelayLine as DelayLine
    from reservoir_hw.networks.topologies import Orthogonal as Orthogonal
    from reservoir_hw.networks.topologies import Random as Random
    from reservoir_hw.networks.topologies import Ring as Ring
    from reservoir_hw.networks.topologies import ScaleFree as ScaleFree
    from reservoir_hw.networks.topologies import SmallWorld as SmallWorld
    from reservoir_hw.networks.weights import EsnWeights as EsnWeights
    from reservoir_hw.networks.weights import GatedWeights as GatedWeights
    from reservoir_hw.networks.weights import draw_gated_weights as draw_gated_weights
    from reservoir_hw.networks.weights import draw_weights as draw_weights

__getattr__, __dir__ = lazy_names(__name__)
