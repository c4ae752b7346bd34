"""Traces: states of a device on disk, to be replayed, measured and compared."""

from reservoir_hw.experiment.states.traces.difference import Difference, compare, repeat_error
from reservoir_hw.experiment.states.traces.figure import plot
from reservoir_hw.experiment.states.traces.importing import Imported, import_trace
from reservoir_hw.experiment.states.traces.information import describe
from reservoir_hw.experiment.states.traces.mapping import MappingConfig, load_mapping

__all__ = [
    "Difference",
    "Imported",
    "MappingConfig",
    "compare",
    "describe",
    "import_trace",
    "load_mapping",
    "plot",
    "repeat_error",
]
