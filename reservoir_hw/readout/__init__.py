"""The digital side of an experiment: what reads the states of a reservoir and is trained.

    from reservoir_hw.readout import RidgeReadout

    readout = RidgeReadout("gcv", washout=100).fit(states, targets)
    outputs = readout.predict(states)

`RidgeReadout`, `RLSReadout` and `LMSReadout` need numpy and safetensors only, so the readout of a bench can be
trained and used where there is no torch, and so can what was exported (`EdgeRunner`, docs/edge.md). Models trained by
gradients need torch; docs/readouts.md has a page on them. Names are imported when they are first asked for (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.networks.language_weights import EsnArrays as EsnArrays
    from reservoir_hw.networks.language_weights import dense_esn_weights as dense_esn_weights
    from reservoir_hw.networks.language_weights import sparse_esn_weights as sparse_esn_weights
    from reservoir_hw.readout.configuration import NotSolved as NotSolved
    from reservoir_hw.readout.edge.runner import EdgeRunner as EdgeRunner
    from reservoir_hw.readout.export.exporter import export_model as export_model
    from reservoir_hw.readout.linear.online import LMSReadout as LMSReadout
    from reservoir_hw.readout.linear.online import RLSReadout as RLSReadout
    from reservoir_hw.readout.linear.ridge import IllConditionedWarning as IllConditionedWarning
    from reservoir_hw.readout.linear.ridge import RidgeReadout as RidgeReadout
    from reservoir_hw.readout.linear.training_chunks import Chunk as Chunk
    from reservoir_hw.readout.models.configuration import ReservoirModelConfig as ReservoirModelConfig
    from reservoir_hw.readout.models.esn_language_model import EsnLM as EsnLM
    from reservoir_hw.readout.models.esn_language_model import dense_esn_lm as dense_esn_lm
    from reservoir_hw.readout.models.esn_language_model import sparse_esn_lm as sparse_esn_lm
    from reservoir_hw.readout.models.gated import DrivenCandidate as DrivenCandidate
    from reservoir_hw.readout.models.gated import GatedRecurrence as GatedRecurrence
    from reservoir_hw.readout.models.gated import MatrixCandidate as MatrixCandidate
    from reservoir_hw.readout.models.gated import SequenceClassifier as SequenceClassifier
    from reservoir_hw.readout.models.gated import SettableCandidate as SettableCandidate
    from reservoir_hw.readout.models.gated import TrainedCandidate as TrainedCandidate
    from reservoir_hw.readout.models.laerc import LAERC as LAERC
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer as ReservoirLayer
    from reservoir_hw.readout.models.softmax import AttentionReadout as AttentionReadout
    from reservoir_hw.readout.models.softmax import LinearReadout as LinearReadout
    from reservoir_hw.readout.models.softmax import LowRankReadout as LowRankReadout
    from reservoir_hw.readout.models.softmax import cross_entropy as cross_entropy
    from reservoir_hw.readout.models.token_model import OneHot as OneHot
    from reservoir_hw.readout.models.token_model import ReservoirLM as ReservoirLM
    from reservoir_hw.readout.models.token_model import TokenModel as TokenModel
    from reservoir_hw.readout.models.token_model import given_embedding as given_embedding
    from reservoir_hw.readout.models.token_model import random_embedding as random_embedding

__getattr__, __dir__ = lazy_names(__name__)
