"""What a reservoir is driven with for each token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number


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
