"""Echo state language models whose frozen recurrence is part of the torch model.

For the two models of Ueda et al. at the papers' sizes: W_in is looked up instead of multiplied with one-hot
vectors, and may be trained through the recurrence. On a device use `ReservoirLM`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.networks.language_weights import EsnArrays, dense_esn_weights, sparse_esn_weights
from reservoir_hw.readout.models.softmax import LinearReadout, LowRankReadout
from reservoir_hw.readout.models.token_model import SparseEmbedding, TokenModel, check_readout, given_embedding

Activation = Literal["tanh", "relu", "identity"]

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu, "identity": torch.clone}


class Counts(NamedTuple):
    """Numbers of weights as the papers count them: of a sparse matrix the nonzeros, of a dense one all."""

    trainable: int
    frozen: int

    @property
    def total(self) -> int:
        """Trainable and frozen ones."""
        return self.trainable + self.frozen


class EsnLM(TokenModel):
    """h_t = (1-a) ⊙ h_(t-1) + a ⊙ f(W h_(t-1) + W_in u_t), one-hot u_t (Ueda et al. 2025, eq. 1 of both papers).

    W, the leak rate a and, unless `train_input`, W_in are frozen and held as buffers; h_0 = 0. The features are the
    states. The recurrence is computed in the model's own dtype, under autocast too.

    Parameters
    ----------
    weights
        `sparse_esn_weights`, `dense_esn_weights`, or `EsnArrays` of your own.
    readout
        States (..., nodes) to logits (..., vocabulary).
    activation
        f: "tanh", "relu" or "identity".
    train_input
        Train W_in (dense) by gradients through the recurrence, back to the start of a call of `advance`.
    dropout
        Probability with which, in training, elements of W_in u_t and of the features are zeroed.

    Raises
    ------
    ConfigurationError
        Widths that do not fit together, an unknown activation, a sparse W_in that shall be trained.
    """

    exported_methods = ("begin", "forward", "features", "advance")

    leak: float | Tensor

    def __init__(
        self,
        weights: EsnArrays,
        readout: nn.Module,
        *,
        activation: Activation = "tanh",
        train_input: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(weights.vocabulary)
        if activation not in get_args(Activation):
            raise ConfigurationError(f"activation must be one of {', '.join(get_args(Activation))}, not {activation!r}")
        self.nodes = weights.nodes
        check_readout(readout, self.nodes, self.vocabulary)
        sparse_input = not isinstance(weights.W_in, np.ndarray)
        if sparse_input and train_input:
            raise ConfigurationError("a sparse W_in would not stay sparse in training: give a dense one to train it")
        self.activation: Activation = activation
        if sparse_input:
            self.embedding: nn.Module = SparseEmbedding(weights.W_in)
        else:
            self.embedding = given_embedding(weights.W_in.T, trainable=train_input)
        W, dtype = weights.W, torch.get_default_dtype()
        csr = None if isinstance(W, np.ndarray) else W.tocsr()
        self.register_buffer("W_values", torch.tensor(W if csr is None else csr.data, dtype=dtype))
        self.register_buffer("W_columns", None if csr is None else torch.tensor(csr.indices, dtype=torch.int64))
        self.register_buffer("W_rows", None if csr is None else torch.tensor(csr.indptr, dtype=torch.int64))
        if isinstance(weights.leak, np.ndarray):
            self.register_buffer("leak", torch.tensor(weights.leak, dtype=dtype))
        else:
            self.leak = float(weights.leak)
        self.dropout = nn.Dropout(number_in("dropout", dropout, 0.0, 1.0, excluding=(1.0,)))
        self.readout = readout
        self.begin(1)

    def begin(self, batch: int = 1) -> None:
        """Bring the states of `batch` texts to 0."""
        self._batch = whole_number("batch", batch)
        self._state: Tensor | None = None

    def advance(self, tokens: Tensor) -> Tensor:
        """States (batch, time, nodes) of tokens (batch, time), going on from the last ones."""
        if tokens.shape[0] != self._batch:
            raise ShapeError(
                f"tokens hold {tokens.shape[0]} texts, but {self._batch} were begun: "
                f"call begin({tokens.shape[0]}) first"
            )
        with torch.autocast(tokens.device.type, enabled=False):
            driven = self.dropout(self.embedding(tokens))
            if not driven.shape[1]:
                return driven
            states = self._driven(driven)
        self._state = states[:, -1].detach()
        return self.dropout(states)

    def cut(self, cutter: Any) -> Any:
        """One graph, with the recurrence inside."""
        return cutter.recurrence(self)

    def features_from(self, state: Tensor, tokens: Tensor) -> Tensor:
        """States (batch, time, nodes) of tokens (batch, time) that go on from a state (batch, nodes).

        The texts that the model is in the middle of are afterwards where they were.
        """
        kept = self._batch, self._state
        try:
            self.begin(len(tokens))
            self._state = state
            return self.advance(tokens)
        finally:
            self._batch, self._state = kept

    def dense_recurrence(self) -> np.ndarray:
        """W (nodes × nodes), float32."""
        values = self.W_values.detach().float().cpu().numpy()
        if self.W_columns is None or self.W_rows is None:
            return values
        dense = np.zeros((self.nodes, self.nodes), np.float32)
        rows = np.repeat(np.arange(self.nodes), np.diff(self.W_rows.cpu().numpy()))
        np.add.at(dense, (rows, self.W_columns.cpu().numpy()), values)
        return dense

    def constants(self) -> dict[str, Any]:
        """What the weights do not tell; see `training.identity`. A leak rate per node is a buffer."""
        return {"activation": self.activation, **({} if isinstance(self.leak, Tensor) else {"leak": self.leak})}

    def counts(self) -> Counts:
        """How many weights are trained and how many are frozen."""
        trainable = sum(p.numel() for p in self.parameters() if p.requires_grad)
        frozen = sum(p.numel() for p in self.parameters() if not p.requires_grad)
        frozen += self.W_values.numel()
        if isinstance(self.leak, Tensor):
            frozen += self.leak.numel()
        if isinstance(self.embedding, SparseEmbedding):
            frozen += self.embedding.nonzeros
        return Counts(trainable, frozen)

    # W is held as plain tensors, which every file format and device takes: dense, or the three arrays of CSR.
    W_values: Tensor
    W_columns: Tensor | None
    W_rows: Tensor | None

    def _driven(self, driven: Tensor) -> Tensor:
        function = _FUNCTIONS[self.activation]
        step = self._step()
        state = driven.new_zeros(self._batch, self.nodes) if self._state is None else self._state.to(driven)
        rows = []
        for x in driven.unbind(1):
            state = torch.lerp(state, function(step(x, state)), self.leak)
            rows.append(state)
        return torch.stack(rows, 1)

    def _step(self) -> Callable[[Tensor, Tensor], Tensor]:
        """x and the states (batch, nodes) before -> x + W h."""
        if self.W_rows is None or self.W_columns is None:
            transposed = self.W_values.T
            return lambda x, state: torch.addmm(x, state, transposed)
        with warnings.catch_warnings():
            # torch warns once per process that its CSR tensors are in beta; the tests cover what is used.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            # The arrays are scipy's; checking them takes as long as a step.
            W = torch.sparse_csr_tensor(
                self.W_rows, self.W_columns, self.W_values, (self.nodes, self.nodes), check_invariants=False
            )
        return lambda x, state: x + (W @ state.T).T


def sparse_esn_lm(
    nodes: int,
    vocabulary: int,
    *,
    rank: int = 512,
    seed: int,
    **weights: Any,
) -> EsnLM:
    """The model of Ueda et al. 2025, Syntactic Learnability of Echo State Neural Language Models at Scale.

    Sparse frozen weights, a leak rate per node, tanh, and a low-rank readout of `rank`. `weights` are further
    parameters of `sparse_esn_weights`.
    With `exact` links the counts are those of eq. 6-9: (nodes + vocabulary) · connections + nodes frozen and
    (nodes + vocabulary) · rank + vocabulary trainable; without, the first in expectation. The defaults are the
    paper's.
    """
    readout = _seeded(lambda: LowRankReadout(nodes, vocabulary, rank), seed)
    return EsnLM(sparse_esn_weights(nodes, vocabulary, seed=seed, **weights), readout)


def dense_esn_lm(
    nodes: int,
    vocabulary: int,
    *,
    train_input: bool,
    dropout: float = 0.1,
    seed: int,
    **weights: Any,
) -> EsnLM:
    """The ESN, or with `train_input` the ESN+i, of Ueda et al. 2025 (in Japanese: frozen recurrence).

    Dense W_in, ReLU, one leak rate, dropout after the embedding and before the readout, a full-rank readout. Of V
    tokens and N nodes V·N + V weights are trained (ESN) or 2·V·N + V (ESN+i), of 2·V·N + V + N² in all. `weights` are
    further parameters of `dense_esn_weights`. The defaults are the paper's.
    """
    readout = _seeded(lambda: LinearReadout(nodes, vocabulary), seed)
    arrays = dense_esn_weights(nodes, vocabulary, seed=seed, **weights)
    return EsnLM(arrays, readout, activation="relu", train_input=train_input, dropout=dropout)


def _seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module whose first weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
