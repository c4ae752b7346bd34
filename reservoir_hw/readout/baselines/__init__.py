"""Models without a reservoir, to compare readouts with. Those that need torch are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.readout.baselines.ngram import NGram as NGram
    from reservoir_hw.readout.baselines.recurrent import SRN as SRN
    from reservoir_hw.readout.baselines.recurrent import RecurrentLM as RecurrentLM
    from reservoir_hw.readout.baselines.recurrent import train_in_stages as train_in_stages
    from reservoir_hw.readout.baselines.transformer import CharTransformer as CharTransformer
    from reservoir_hw.readout.baselines.transformer import Gpt as Gpt

__getattr__, __dir__ = lazy_names(__name__)
