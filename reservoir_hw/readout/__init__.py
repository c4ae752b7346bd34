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

from reservoir_hw.readout._lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.readout._chunks import Chunk
    from reservoir_hw.readout._errors import IllConditionedWarning, NotSolved
    from reservoir_hw.readout.attention import AttentionReadout
    from reservoir_hw.readout.edge.runner import EdgeRunner
    from reservoir_hw.readout.embeddings import OneHot, given_embedding, random_embedding
    from reservoir_hw.readout.esn_language_model import EsnLM, dense_esn_lm, sparse_esn_lm
    from reservoir_hw.readout.esn_weights import EsnArrays, dense_esn_weights, sparse_esn_weights
    from reservoir_hw.readout.export.exporter import export_model
    from reservoir_hw.readout.gated import (
        DrivenCandidate,
        GatedRecurrence,
        MatrixCandidate,
        SequenceClassifier,
        SettableCandidate,
        TrainedCandidate,
    )
    from reservoir_hw.readout.laerc import LAERC
    from reservoir_hw.readout.language_model import ReservoirLM
    from reservoir_hw.readout.online import LMSReadout, RLSReadout
    from reservoir_hw.readout.reservoir_layer import ReservoirLayer
    from reservoir_hw.readout.ridge import RidgeReadout
    from reservoir_hw.readout.softmax import LinearReadout, LowRankReadout, cross_entropy
    from reservoir_hw.readout.token_model import TokenModel

__all__ = [
    "LAERC",
    "AttentionReadout",
    "Chunk",
    "DrivenCandidate",
    "EdgeRunner",
    "EsnArrays",
    "EsnLM",
    "GatedRecurrence",
    "IllConditionedWarning",
    "LMSReadout",
    "LinearReadout",
    "LowRankReadout",
    "MatrixCandidate",
    "NotSolved",
    "OneHot",
    "RLSReadout",
    "ReservoirLM",
    "ReservoirLayer",
    "RidgeReadout",
    "SequenceClassifier",
    "SettableCandidate",
    "TokenModel",
    "TrainedCandidate",
    "cross_entropy",
    "dense_esn_lm",
    "dense_esn_weights",
    "export_model",
    "given_embedding",
    "random_embedding",
    "sparse_esn_lm",
    "sparse_esn_weights",
]

_HOME = {
    "AttentionReadout": "attention",
    "Chunk": "_chunks",
    "DrivenCandidate": "gated",
    "EdgeRunner": "edge.runner",
    "EsnArrays": "esn_weights",
    "EsnLM": "esn_language_model",
    "GatedRecurrence": "gated",
    "IllConditionedWarning": "_errors",
    "LAERC": "laerc",
    "LMSReadout": "online",
    "LinearReadout": "softmax",
    "LowRankReadout": "softmax",
    "MatrixCandidate": "gated",
    "NotSolved": "_errors",
    "OneHot": "embeddings",
    "RLSReadout": "online",
    "ReservoirLM": "language_model",
    "ReservoirLayer": "reservoir_layer",
    "RidgeReadout": "ridge",
    "SequenceClassifier": "gated",
    "SettableCandidate": "gated",
    "TokenModel": "token_model",
    "TrainedCandidate": "gated",
    "cross_entropy": "softmax",
    "dense_esn_lm": "esn_language_model",
    "dense_esn_weights": "esn_weights",
    "export_model": "export.exporter",
    "given_embedding": "embeddings",
    "random_embedding": "embeddings",
    "sparse_esn_lm": "esn_language_model",
    "sparse_esn_weights": "esn_weights",
}


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
