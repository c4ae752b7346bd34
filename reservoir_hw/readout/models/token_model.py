"""What every language model of this package is: tokens in, logits of the next token out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from reservoir_hw.core.arrays import as_numpy
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError, StateLost
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, Stage, layers_in
from reservoir_hw.readout.models.softmax import IGNORED, cross_entropy
from reservoir_hw.readout.sampling import Sampler
from reservoir_hw.tasks.task import OutputScale


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; afterwards every part is in the mode it was in."""
    # Part by part: some may be in evaluation mode for good.
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def device_of(module: nn.Module) -> torch.device:
    """Where the weights of a module are; the CPU where it has none."""
    return next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))


class TokenModel(nn.Module, ABC):
    """A causal language model with a state: abstract base.

    A model writes `begin` and `advance`, and sets `readout`, a module that takes features (..., F) to logits
    (..., vocabulary) and treats positions independently. `advance` continues from where the last one ended, so
    that a text in one piece, in chunks and token by token gives the same features.
    """

    readout: nn.Module

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = whole_number("vocabulary", vocabulary)
        # Counts uses of the state: a text whose state another call has taken over must not go on.
        self._uses = 0

    # ---- what a model writes

    @abstractmethod
    def begin(self, batch: int = 1) -> None:
        """Bring everything to rest for `batch` texts side by side."""

    @abstractmethod
    def advance(self, tokens: Tensor) -> Tensor:
        """Features (batch, time, F) of tokens (batch, time) int64, going on from where the model is.

        The tokens are not checked here; `features`, `forward`, `loss` and `generate` do.
        """

    def cut(self, cutter: Any) -> Any:
        """Say how the model is exported: hand its parts to a method of the cutter (`Stage`).

        A model that can be exported writes it, and names in `exported_methods` what its export stands for.
        """
        raise ConfigurationError(
            f"a {type(self).__name__} cannot be exported: it does not say where its reservoirs are (method cut)"
        )

    @property
    def reservoir_layers(self) -> list[ReservoirLayer]:
        """The reservoirs in the model, in the order in which they were registered; none in a baseline."""
        return layers_in(self)

    @property
    def trainable_upstream(self) -> bool:
        """Whether features change in training, so that they cannot be computed beforehand.

        Unless a model knows better: whether anything outside the readout is trainable. A weight that the
        readout shares with an embedding is outside it too.
        """
        outside = [module for name, module in self.named_children() if name != "readout"]
        parameters = [*self.parameters(recurse=False), *(p for module in outside for p in module.parameters())]
        return any(parameter.requires_grad for parameter in parameters)

    # ---- what every model offers

    def features(self, tokens: Tensor) -> Tensor:
        """Features (batch, time, F) of whole texts (batch, time), from rest."""
        tokens = check_tokens(tokens, self.vocabulary)
        self._uses += 1
        self.begin(tokens.shape[0])
        return self.advance(tokens)

    def last_features(self, tokens: Tensor) -> Tensor:
        """Features (batch, F) of the last position of whole texts (batch, time), from rest."""
        return self.features(tokens)[:, -1]

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, time, vocabulary) of whole texts (batch, time), from rest; row t predicts token t + 1."""
        return self.readout(self.features(tokens))

    output_scale: OutputScale = "probabilities"
    """What `outputs` are; `loss` is the mean cross-entropy of the next token where they are probabilities."""

    def outputs(self, tokens: Tensor) -> Tensor:
        """What a model says of each token of the vocabulary, (batch, time, vocabulary); otherwise as `forward`.

        Of outputs that are each for themselves the logits are their logarithms.
        """
        logits = self(tokens)
        return logits.exp() if self.output_scale == "activations" else logits.softmax(-1)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of targets (batch, time) after whole texts (batch, time).

        Targets of -1 are not counted. Logits exist for a chunk of positions at a time.
        Raises InputRangeError for tokens or targets outside the vocabulary, ShapeError for shapes that differ.
        """
        tokens = check_tokens(tokens, self.vocabulary)
        targets = check_tokens(targets, self.vocabulary, "targets", ignored=True)
        if tokens.shape != targets.shape:
            raise ShapeError(
                f"tokens and targets must have the same shape, not {tuple(tokens.shape)} and {tuple(targets.shape)}"
            )
        return self.loss_of(self.features(tokens), targets)

    def loss_of(self, features: Tensor, targets: Tensor) -> Tensor:
        """As `loss`, from features (batch, time, F) on."""
        return cross_entropy(self.readout, features, targets)

    def generate(
        self,
        prompt: Sequence[int] | np.ndarray | Tensor,
        max_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[int]:
        """Continue `prompt`, a non-empty sequence of tokens, by `max_tokens` tokens, each yielded when it is drawn.

        The prompt is one `advance`, then each token is one of a single position. `temperature` divides the
        logits, 0 takes the most likely token; `top_k` keeps the k most likely, then `top_p` the fewest whose
        probability reaches p. The same seed gives the same text. The model computes in evaluation mode without
        gradients and is left in the mode it was in.

        Raises ConfigurationError, ShapeError or InputRangeError at once for arguments that cannot be used, and
        StateLost where the model is used for something else while the text is being read.
        """
        start = check_tokens(_one_text(prompt), self.vocabulary, "prompt")
        if start.shape[1] == 0:
            raise ShapeError("the prompt is empty: begin with at least one token, such as that of a sentence's start")
        count = whole_number("max_tokens", max_tokens)
        return self._continued(start.to(device_of(self)), count, Sampler(temperature, top_k, top_p, seed))

    # ---- how

    def _continued(self, tokens: Tensor, count: int, sampler: Sampler) -> Iterator[int]:
        self._uses += 1
        mine = self._uses
        with evaluating(self):
            self.begin(1)
        for _ in range(count):
            if self._uses != mine:
                raise StateLost(
                    "this text cannot go on: the model was used for something else while it was being read; "
                    "read it to its end first (list(model.generate(...)))"
                )
            with evaluating(self):
                token = sampler(self.readout(self.advance(tokens)[:, -1])[0])
            yield token
            tokens = torch.full_like(tokens[:, :1], token)


def check_tokens(tokens: Any, vocabulary: int, name: str = "tokens", *, ignored: bool = False) -> Tensor:
    """Tokens (batch, time) as int64, on the device they were on.

    Raises ShapeError for another number of axes or numbers that are not whole, InputRangeError for a token
    outside 0..vocabulary - 1; with `ignored`, -1 is allowed too.
    """
    if not isinstance(tokens, Tensor) or tokens.ndim != 2:
        shape = tuple(tokens.shape) if hasattr(tokens, "shape") else type(tokens).__name__
        raise ShapeError(f"{name} must be a tensor (batch, time) of whole numbers, not {shape}")
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ShapeError(f"{name} must be whole numbers, the numbers of tokens, not {tokens.dtype}")
    tokens = tokens.long()
    if tokens.numel() == 0:
        return tokens
    lowest, highest = (int(limit) for limit in tokens.aminmax())
    if lowest >= (IGNORED if ignored else 0) and highest < vocabulary:
        return tokens
    wrong = (tokens < (IGNORED if ignored else 0)) | (tokens >= vocabulary)
    text, position = torch.nonzero(wrong)[0].tolist()
    raise InputRangeError(
        f"{name}: token {int(tokens[text, position])} at (text, position) = ({text}, {position}) is outside the "
        f"vocabulary of {vocabulary} (0 to {vocabulary - 1}): was the text made with another tokenizer?"
    )


def _one_text(prompt: Any) -> Tensor:
    text = np.asarray(as_numpy(prompt))
    if text.size and text.dtype.kind not in "iu":
        raise ShapeError(f"the prompt must be a sequence of tokens (whole numbers), not of {text.dtype}")
    if text.ndim != 1:
        raise ShapeError(f"the prompt must be one sequence of tokens (time,), not {text.shape}")
    return torch.from_numpy(text.astype(np.int64))[None]


# ---- How probable a model finds whole sentences.


# Logits that exist at once: 16 MiB. For larger blocks the C library asks for new memory each time, which takes as long
# as the computation.
_LOGITS = 1 << 22
_MOST = 256


def log_probabilities(
    model: TokenModel, sentences: Sequence[np.ndarray], on_tokens: Callable[[int], None] = lambda tokens: None
) -> np.ndarray:
    """Of each sentence (tokens (time,)) ln P(all tokens after the first | the first), in nats: (sentences,) float64.

    Each begins at rest. Sentences of similar length are read side by side, filled up at their end, which a causal model
    does not see. `on_tokens` is told how many were read.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int64)
    order = np.argsort(lengths, kind="stable")
    found = np.zeros(len(sentences))
    device = next(model.readout.parameters()).device
    first = 0
    with evaluating(model):
        while first < len(order):
            some = order[first : first + _MOST]
            some = some[: max(1, _LOGITS // (model.vocabulary * int(lengths[some[-1]])))]
            first += len(some)
            read = [torch.from_numpy(sentences[number].astype(np.int64)) for number in some]
            given = pad_sequence(read, batch_first=True).to(device)
            logits = model(given[:, :-1]).double()
            chosen = logits.log_softmax(-1).gather(-1, given[:, 1:, None])[..., 0].cpu().numpy()
            counted = np.arange(1, given.shape[1]) < lengths[some, None]
            found[some] = np.where(counted, chosen, 0.0).sum(axis=1)
            on_tokens(int(lengths[some].sum()))
    return found


# ---- A language model around any reservoir: tokens -> embedding -> reservoir -> readout.


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
