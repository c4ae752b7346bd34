"""What a reservoir is worth: measures on arrays, on recordings and on live devices."""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.measures._consistency import Consistency, consistency
    from reservoir_hw.measures._drift import Drift, drift
    from reservoir_hw.measures._echo_state_index import EchoStateIndex, echo_state_index
    from reservoir_hw.measures._effective_dimension import EffectiveDimension, effective_dimension
    from reservoir_hw.measures._live_source import Live
    from reservoir_hw.measures._lyapunov_exponent import (
        LyapunovExponent,
        lyapunov_from_replicas,
        lyapunov_from_transition,
    )
    from reservoir_hw.measures._measured import Interval, Measured
    from reservoir_hw.measures._memory_capacity import MemoryCapacity, memory_capacity
    from reservoir_hw.measures._processing_capacity import ProcessingCapacity, information_processing_capacity
    from reservoir_hw.measures._rank import Rank, generalisation_rank, kernel_rank
    from reservoir_hw.measures._recorded_source import Recorded
    from reservoir_hw.measures._signal_to_noise import SignalToNoise, signal_to_noise
    from reservoir_hw.measures._source import MEASURES, Source
    from reservoir_hw.measures._states_on_disk import StatesOnDisk

__all__ = [
    "MEASURES",
    "Consistency",
    "Drift",
    "EchoStateIndex",
    "EffectiveDimension",
    "Interval",
    "Live",
    "LyapunovExponent",
    "Measured",
    "MemoryCapacity",
    "ProcessingCapacity",
    "Rank",
    "Recorded",
    "SignalToNoise",
    "Source",
    "StatesOnDisk",
    "consistency",
    "drift",
    "echo_state_index",
    "effective_dimension",
    "generalisation_rank",
    "information_processing_capacity",
    "kernel_rank",
    "lyapunov_from_replicas",
    "lyapunov_from_transition",
    "memory_capacity",
    "signal_to_noise",
]

_HOME = {
    "._consistency": ("Consistency", "consistency"),
    "._effective_dimension": ("EffectiveDimension", "effective_dimension"),
    "._drift": ("Drift", "drift"),
    "._echo_state_index": ("EchoStateIndex", "echo_state_index"),
    "._live_source": ("Live",),
    "._lyapunov_exponent": ("LyapunovExponent", "lyapunov_from_replicas", "lyapunov_from_transition"),
    "._measured": ("Interval", "Measured"),
    "._memory_capacity": ("MemoryCapacity", "memory_capacity"),
    "._processing_capacity": ("ProcessingCapacity", "information_processing_capacity"),
    "._rank": ("Rank", "generalisation_rank", "kernel_rank"),
    "._recorded_source": ("Recorded",),
    "._signal_to_noise": ("SignalToNoise", "signal_to_noise"),
    "._source": ("MEASURES", "Source"),
    "._states_on_disk": ("StatesOnDisk",),
}

__getattr__ = lazy_names(__name__, {name: module for module, names in _HOME.items() for name in names})
