"""Traces: states of a device on disk, to be replayed, measured and compared."""

from reservoir_hw.experiment.states.traces.difference import Difference, compare, repeat_error
from reservoir_hw.experiment.states.traces.importing import Imported, MappingConfig, import_trace, load_mapping
from reservoir_hw.experiment.states.traces.information import describe, plot

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
