"""What a reservoir is worth: measures on arrays, on recordings and on live devices."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.measures._capacity import MemoryCapacity as MemoryCapacity
    from reservoir_hw.measures._capacity import ProcessingCapacity as ProcessingCapacity
    from reservoir_hw.measures._capacity import information_processing_capacity as information_processing_capacity
    from reservoir_hw.measures._capacity import memory_capacity as memory_capacity
    from reservoir_hw.measures._climate import FEWEST_SERIES as FEWEST_SERIES
    from reservoir_hw.measures._climate import Climate as Climate
    from reservoir_hw.measures._climate import climate as climate
    from reservoir_hw.measures._drift import Drift as Drift
    from reservoir_hw.measures._drift import drift as drift
    from reservoir_hw.measures._live_source import Live as Live
    from reservoir_hw.measures._lyapunov import EchoStateIndex as EchoStateIndex
    from reservoir_hw.measures._lyapunov import LyapunovExponent as LyapunovExponent
    from reservoir_hw.measures._lyapunov import LyapunovSpectrum as LyapunovSpectrum
    from reservoir_hw.measures._lyapunov import echo_state_index as echo_state_index
    from reservoir_hw.measures._lyapunov import kaplan_yorke as kaplan_yorke
    from reservoir_hw.measures._lyapunov import lyapunov_from_replicas as lyapunov_from_replicas
    from reservoir_hw.measures._lyapunov import lyapunov_from_transition as lyapunov_from_transition
    from reservoir_hw.measures._lyapunov import lyapunov_spectrum as lyapunov_spectrum
    from reservoir_hw.measures._measured import Interval as Interval
    from reservoir_hw.measures._measured import Measured as Measured
    from reservoir_hw.measures._measured import StatesOnDisk as StatesOnDisk
    from reservoir_hw.measures._nodes import Nodes as Nodes
    from reservoir_hw.measures._nodes import about_latency as about_latency
    from reservoir_hw.measures._nodes import latency_of as latency_of
    from reservoir_hw.measures._nodes import nodes_of as nodes_of
    from reservoir_hw.measures._operating_map import AtPoint as AtPoint
    from reservoir_hw.measures._operating_map import Coverage as Coverage
    from reservoir_hw.measures._operating_map import OperatingMap as OperatingMap
    from reservoir_hw.measures._operating_map import best_point as best_point
    from reservoir_hw.measures._operating_map import coverage as coverage
    from reservoir_hw.measures._operating_map import grid_points as grid_points
    from reservoir_hw.measures._operating_map import operating_map as operating_map
    from reservoir_hw.measures._rank import EffectiveDimension as EffectiveDimension
    from reservoir_hw.measures._rank import Rank as Rank
    from reservoir_hw.measures._rank import effective_dimension as effective_dimension
    from reservoir_hw.measures._rank import generalisation_rank as generalisation_rank
    from reservoir_hw.measures._rank import kernel_rank as kernel_rank
    from reservoir_hw.measures._repeats import Consistency as Consistency
    from reservoir_hw.measures._repeats import NoiseBudget as NoiseBudget
    from reservoir_hw.measures._repeats import SignalToNoise as SignalToNoise
    from reservoir_hw.measures._repeats import consistency as consistency
    from reservoir_hw.measures._repeats import noise_budget as noise_budget
    from reservoir_hw.measures._repeats import signal_to_noise as signal_to_noise
    from reservoir_hw.measures._source import MEASURES as MEASURES
    from reservoir_hw.measures._source import Recorded as Recorded
    from reservoir_hw.measures._source import Source as Source

__getattr__, __dir__ = lazy_names(__name__)
