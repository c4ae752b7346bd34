"""Models without a reservoir, to compare readouts with."""

from reservoir_hw.readout.baselines.fir import FirBaseline
from reservoir_hw.readout.baselines.ngram import NGram, NGramBaseline

__all__ = ["FirBaseline", "NGram", "NGramBaseline"]
