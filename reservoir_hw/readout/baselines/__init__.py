"""Models without a reservoir, to compare readouts with. Those that need torch are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names
from reservoir_hw.readout.baselines.fir import FirBaseline
from reservoir_hw.readout.baselines.ngram import NGram, NGramBaseline

if TYPE_CHECKING:
    from reservoir_hw.readout.baselines.recurrent import RecurrentLM
    from reservoir_hw.readout.baselines.srn import SRN, train_in_stages
    from reservoir_hw.readout.baselines.transformer import CharTransformer

__all__ = [
    "SRN",
    "CharTransformer",
    "FirBaseline",
    "NGram",
    "NGramBaseline",
    "RecurrentLM",
    "train_in_stages",
]

_HOME = {
    "SRN": ".srn",
    "CharTransformer": ".transformer",
    "RecurrentLM": ".recurrent",
    "train_in_stages": ".srn",
}


__getattr__ = lazy_names(__name__, _HOME)
