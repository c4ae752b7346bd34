"""A language model around any reservoir: tokens -> embedding -> reservoir -> readout."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer
from reservoir_hw.readout.models.stages import Stage
from reservoir_hw.readout.models.token_model import TokenModel


class ReservoirLM(TokenModel):
    """Tokens -> embedding -> reservoir -> readout, with any reservoir of the framework.

        layer = ReservoirLayer(reservoir)
        ReservoirLM(random_embedding(59, 16, seed=0), layer, LinearReadout(layer.nodes, 59))

    is the classic reservoir computer of Köster & Uchida 2026, with `AttentionReadout` in place of `LinearReadout`
    their AERC, and with `OneHot` and `LowRankReadout` the sparse echo state model of Ueda et al. 2025.

    Parameters
    ----------
    embedding
        Takes tokens (...) to vectors (..., inputs of the reservoir): `OneHot`, `random_embedding`,
        `given_embedding`, or any module with `num_embeddings`.
    layer
        The reservoir. Its states are the features. With frozen embeddings they can be computed beforehand.
    readout
        States to logits; `LinearReadout`, `LowRankReadout`, `AttentionReadout`, or any module that treats
        positions independently.

    Raises
    ------
    ConfigurationError
        Widths that do not fit together, or a trainable embedding that no gradient would ever reach.
    """

    exported_methods = ("begin", "forward", "features", "advance")

    def __init__(self, embedding: nn.Module, layer: ReservoirLayer, readout: nn.Module) -> None:
        vocabulary: Any = getattr(embedding, "num_embeddings", None)
        if vocabulary is None:
            raise ConfigurationError(
                f"the embedding ({type(embedding).__name__}) has no num_embeddings, the number of tokens it takes"
            )
        super().__init__(vocabulary)
        width: Any = getattr(embedding, "embedding_dim", layer.inputs)
        if width != layer.inputs:
            raise ConfigurationError(f"the embedding is {width} wide, the reservoir takes {layer.inputs} inputs")
        check_readout(readout, layer.nodes, self.vocabulary)
        shared = {id(parameter) for parameter in readout.parameters()}
        unreached = [p for p in embedding.parameters() if p.requires_grad and id(p) not in shared]
        if unreached and layer.gradient == "stop":
            raise ConfigurationError(
                "the embedding is trainable, but with the policy stop no gradient passes the reservoir, so it would "
                "never learn: freeze it, or give the layer the policy through or twin"
            )
        self.embedding = embedding
        self.layer = layer
        self.readout = readout

    @property
    def trainable_upstream(self) -> bool:
        """Whether the embedding is trainable, so that the states change in training."""
        return any(parameter.requires_grad for parameter in self.embedding.parameters())

    def begin(self, batch: int = 1) -> None:
        """Bring the reservoir to rest for `batch` texts."""
        self.layer.begin(batch)

    def advance(self, tokens: Tensor) -> Tensor:
        """States (batch, time, nodes) of tokens (batch, time), going on from where the reservoir is."""
        return self.layer.advance(self.embedding(tokens))

    def cut(self, cutter: Any) -> Any:
        """Embedding | reservoir | readout."""
        first = Stage(
            lambda tokens, _: (self.embedding(tokens), None),
            lambda graph, tokens, _: (graph.emit(self.embedding, tokens, "embedding"), None),
        )
        last = Stage(
            lambda _, states: (self.readout(states), None),
            lambda graph, _, states: (cutter.emit_readout(graph, self.readout, states, self.layer.nodes), None),
        )
        name = f"{type(self).__name__}({type(self.readout).__name__})"
        return cutter.chain(name, [self.layer], [first, last], vocabulary=self.vocabulary)


def check_readout(readout: nn.Module, features: int, vocabulary: int) -> None:
    """Raise ConfigurationError if the readout declares widths that do not fit."""
    takes: Any = getattr(readout, "features", features)
    gives: Any = getattr(readout, "vocabulary", vocabulary)
    if takes != features:
        raise ConfigurationError(f"the readout takes {takes} features, the reservoir has {features} nodes")
    if gives != vocabulary:
        raise ConfigurationError(f"the readout gives {gives} logits, the embedding takes {vocabulary} tokens")
