"""A language model around any reservoir: tokens -> embedding -> reservoir -> readout."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, Stage
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


# ---- What a reservoir is driven with for each token.


class OneHot(nn.Module):
    """Token i becomes a vector of zeros with a one at i: (...) -> (..., vocabulary).

    The vectors are computed, not stored, in the dtype that the model has. With a large vocabulary each is long:
    50,257 channels for 16,384 positions are 3.3 GB. `EsnLM` looks up the columns of W_in instead.
    """

    one: Tensor

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.num_embeddings = self.embedding_dim = whole_number("vocabulary", vocabulary)
        self.register_buffer("one", torch.ones(()), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors (..., vocabulary) of tokens (...)."""
        vectors = self.one.new_zeros((*tokens.shape, self.num_embeddings))
        return vectors.scatter_(-1, tokens.unsqueeze(-1), self.one.expand(*tokens.shape, 1))

    def emit(self, graph: Any, tokens: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`)."""
        del name
        return graph.one_hot(tokens, self.num_embeddings)


def random_embedding(
    vocabulary: int, width: int, *, seed: int, scaling: float = 1.0, trainable: bool = False
) -> nn.Embedding:
    """Vectors (vocabulary × width) of normal numbers with standard deviation `scaling`, frozen unless `trainable`.

    They come from a numpy Generator: a seed means the same numbers on every machine.
    """
    shape = (whole_number("vocabulary", vocabulary), whole_number("width", width))
    scaling = number_in("scaling", scaling, 0.0, float("inf"))
    drawn = generator(whole_number("seed", seed, least=0), "embedding").standard_normal(shape) * scaling
    return given_embedding(drawn, trainable=trainable)


def given_embedding(vectors: Any, *, trainable: bool = False) -> nn.Embedding:
    """An embedding with these vectors (vocabulary × width), such as pretrained ones, frozen unless `trainable`.

    Floating-point tensors keep their dtype, arrays become torch's default one.
    """
    if isinstance(vectors, Tensor):
        matrix = vectors.detach().clone()
    else:
        matrix = torch.tensor(np.asarray(vectors), dtype=torch.get_default_dtype())
    if matrix.ndim != 2 or not matrix.is_floating_point() or not bool(matrix.isfinite().all()):
        raise ConfigurationError(
            f"an embedding is a matrix (vocabulary × width) of finite numbers, not {tuple(matrix.shape)} {matrix.dtype}"
        )
    return nn.Embedding.from_pretrained(matrix, freeze=not trainable)


class SparseEmbedding(nn.Module):
    """Frozen vectors with few nonzeros each: (...) -> (..., width), such as the columns of a sparse W_in.

    Stored are the nonzeros only, in two arrays (vocabulary × most nonzeros of a token).
    """

    links: Tensor
    values: Tensor

    def __init__(self, columns: Any) -> None:
        """`columns` is a scipy sparse array (width × vocabulary) whose column i is the vector of token i."""
        super().__init__()
        columns = columns.tocsc()
        self.embedding_dim, self.num_embeddings = (int(length) for length in columns.shape)
        counts = np.diff(columns.indptr)
        self.nonzeros = int(counts.sum())
        filled = np.arange(counts.max(initial=1)) < counts[:, None]
        links, values = np.zeros(filled.shape, np.int64), np.zeros(filled.shape)
        links[filled], values[filled] = columns.indices, columns.data
        self.register_buffer("links", torch.from_numpy(links))
        self.register_buffer("values", torch.from_numpy(values).to(torch.get_default_dtype()))

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors (..., width) of tokens (...)."""
        vectors = self.values.new_zeros((*tokens.shape, self.embedding_dim))
        return vectors.scatter_add_(-1, self.links[tokens], self.values[tokens])

    def emit(self, graph: Any, tokens: str, name: str) -> str:
        """The same as nodes of a graph (`readout.export`), with a dense matrix."""
        dense = self.values.new_zeros(self.num_embeddings, self.embedding_dim)
        return graph.embedding(tokens, name, dense.scatter_add_(-1, self.links, self.values))
