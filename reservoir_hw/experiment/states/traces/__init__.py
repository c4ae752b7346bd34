"""Traces: states of a device on disk, to be replayed, measured and compared."""

from reservoir_hw.experiment.states.traces.difference import Difference as Difference
from reservoir_hw.experiment.states.traces.difference import compare as compare
from reservoir_hw.experiment.states.traces.importing import import_trace as import_trace
from reservoir_hw.experiment.states.traces.information import describe as describe
from reservoir_hw.experiment.states.traces.information import plot as plot
