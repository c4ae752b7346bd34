"""Models without a reservoir, to compare readouts with. Those that need torch are imported when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reservoir_hw.errors import MissingExtra
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
    "SRN": "srn",
    "CharTransformer": "transformer",
    "RecurrentLM": "recurrent",
    "train_in_stages": "srn",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra(f"{name} needs torch: pip install 'reservoir-hw[train]'") from error
