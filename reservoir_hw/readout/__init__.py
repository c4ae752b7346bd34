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
    from reservoir_hw.networks.language_weights import EsnArrays, dense_esn_weights, sparse_esn_weights
    from reservoir_hw.readout.edge.runner import EdgeRunner
    from reservoir_hw.readout.export.exporter import export_model
    from reservoir_hw.readout.linear.errors import IllConditionedWarning, NotSolved
    from reservoir_hw.readout.linear.online import LMSReadout, RLSReadout
    from reservoir_hw.readout.linear.ridge import RidgeReadout
    from reservoir_hw.readout.linear.training_chunks import Chunk
    from reservoir_hw.readout.models.attention import AttentionReadout
    from reservoir_hw.readout.models.configuration import ReservoirModelConfig
    from reservoir_hw.readout.models.embeddings import OneHot, given_embedding, random_embedding
    from reservoir_hw.readout.models.esn_language_model import EsnLM, dense_esn_lm, sparse_esn_lm
    from reservoir_hw.readout.models.gated import (
        DrivenCandidate,
        GatedRecurrence,
        MatrixCandidate,
        SequenceClassifier,
        SettableCandidate,
        TrainedCandidate,
    )
    from reservoir_hw.readout.models.laerc import LAERC
    from reservoir_hw.readout.models.laerc_published import load_published, published_reservoirs
    from reservoir_hw.readout.models.language_model import ReservoirLM
    from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer
    from reservoir_hw.readout.models.softmax import LinearReadout, LowRankReadout, cross_entropy
    from reservoir_hw.readout.models.token_model import TokenModel

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
    "ReservoirModelConfig",
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
    "load_published",
    "published_reservoirs",
    "random_embedding",
    "sparse_esn_lm",
    "sparse_esn_weights",
]

_HOME = {
    "AttentionReadout": ".models.attention",
    "Chunk": ".linear.training_chunks",
    "DrivenCandidate": ".models.gated",
    "EdgeRunner": ".edge.runner",
    "EsnArrays": "reservoir_hw.networks.language_weights",
    "EsnLM": ".models.esn_language_model",
    "GatedRecurrence": ".models.gated",
    "IllConditionedWarning": ".linear.errors",
    "LAERC": ".models.laerc",
    "LMSReadout": ".linear.online",
    "LinearReadout": ".models.softmax",
    "LowRankReadout": ".models.softmax",
    "MatrixCandidate": ".models.gated",
    "NotSolved": ".linear.errors",
    "OneHot": ".models.embeddings",
    "RLSReadout": ".linear.online",
    "ReservoirLM": ".models.language_model",
    "ReservoirLayer": ".models.reservoir_layer",
    "ReservoirModelConfig": ".models.configuration",
    "RidgeReadout": ".linear.ridge",
    "SequenceClassifier": ".models.gated",
    "SettableCandidate": ".models.gated",
    "TokenModel": ".models.token_model",
    "TrainedCandidate": ".models.gated",
    "cross_entropy": ".models.softmax",
    "dense_esn_lm": ".models.esn_language_model",
    "dense_esn_weights": "reservoir_hw.networks.language_weights",
    "export_model": ".export.exporter",
    "given_embedding": ".models.embeddings",
    "load_published": ".models.laerc_published",
    "published_reservoirs": ".models.laerc_published",
    "random_embedding": ".models.embeddings",
    "sparse_esn_lm": ".models.esn_language_model",
    "sparse_esn_weights": "reservoir_hw.networks.language_weights",
}


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
