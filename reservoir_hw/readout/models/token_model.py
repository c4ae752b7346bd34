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
from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, layers_in
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
        return cross_entropy(self.readout, self.features(tokens), targets)

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
        return self._continued(start.to(self._device()), count, Sampler(temperature, top_k, top_p, seed))

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

    def _device(self) -> torch.device:
        tensors = (*self.parameters(), *self.buffers())
        return tensors[0].device if tensors else torch.device("cpu")


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
