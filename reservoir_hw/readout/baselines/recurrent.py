"""Language models with a trained recurrence: LSTM and GRU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.models.softmax import IGNORED, LinearReadout
from reservoir_hw.readout.models.token_model import OneHot, TokenModel

if TYPE_CHECKING:
    from reservoir_hw.readout.training import TrainingOptions, TrainingResult


Cell = Literal["lstm", "gru"]


class RecurrentLM(TokenModel):
    """Tokens -> embedding -> LSTM or GRU -> linear readout, all of it trained.

    The cells are `torch.nn.LSTM` (Hochreiter & Schmidhuber 1997, with forget gates) and `torch.nn.GRU` (Cho et al. 2014
    with the reset gate behind the recurrent product); with g = 4 or 3 gates, each with torch's two biases, N units and
    E = `embedding` channels, a layer has g (E N + N² + 2 N) parameters. The GRU of Di Sarli et al. 2022, with the reset
    gate in front of the product, is in `reservoir_hw.readout.models.gated`.

    Parameters
    ----------
    vocabulary, hidden
        Tokens, and units of each layer.
    cell
        "lstm" or "gru".
    embedding
        Channels of a trained embedding; None: tokens are one-hot.
    layers
        Recurrent layers on top of each other.
    dropout
        Of the embedding, between the layers, and of the features, in training (Zaremba et al. 2014).
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        *,
        cell: Cell = "lstm",
        embedding: int | None = None,
        layers: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(vocabulary)
        if cell not in get_args(Cell):
            raise ConfigurationError(f"cell must be one of {', '.join(get_args(Cell))}, not {cell!r}")
        self.cell: Cell = cell
        self.hidden = whole_number("hidden", hidden)
        layers, rate = whole_number("layers", layers), number_in("dropout", dropout, 0.0, 1.0, excluding=(1.0,))
        width = self.vocabulary if embedding is None else whole_number("embedding", embedding)
        self.embedding = OneHot(self.vocabulary) if embedding is None else nn.Embedding(self.vocabulary, width)
        self.dropout = nn.Dropout(rate)
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.recurrence = kind(width, self.hidden, layers, batch_first=True, dropout=rate if layers > 1 else 0.0)
        self.readout = LinearReadout(self.hidden, self.vocabulary)
        self._state: Any = None

    def begin(self, batch: int = 1) -> None:
        """All units to 0."""
        self._state = None

    def advance(self, tokens: Tensor) -> Tensor:
        """The units of the last layer, (batch, time, hidden). Gradients reach back to the start of the call."""
        vectors = self.dropout(self.embedding(tokens))
        if not tokens.shape[1]:
            return vectors.new_empty(*tokens.shape, self.hidden)
        features, state = self.recurrence(vectors, self._state)
        self._state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return self.dropout(features)


# ---- The simple recurrent network of Elman, as Tong et al. 2007 trained it beside echo state networks.


Gradient = Literal["previous_step", "through"]
Outputs = Literal["logistic", "softmax"]

STAGES = (0.0, 0.25, 0.5, 0.75)
"""Shares of complex sentences in the corpora that an `SRN` learns one after the other (Tong et al. 2007, 3.1)."""

PASSES = 1000
"""Passes over the data that the paper gave it; read here as those of all stages together."""


class LogisticReadout(LinearReadout):
    """Outputs σ(W x + b), each for itself, as logits log σ(W x + b): their softmax is the outputs, made to sum to 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Logits (..., vocabulary) of features (..., features)."""
        return logsigmoid(self.activations(input))

    def activations(self, features: Tensor) -> Tensor:
        """W x + b, (..., vocabulary)."""
        return super().forward(features)


class SRN(TokenModel):
    """Simple recurrent network (Elman 1991; Tong, Bickett, Christiansen & Cottrell 2007, section 3.1).

    h(t) = tanh(W_in (e(t) - 0.5) + W_h h(t-1)), with the word e(t) one-hot and shifted as in section 3.2, and outputs
    σ(W_out h(t) + b). A bias of h would be no addition: the shifted inputs hold a constant. With 24 words and 70 units
    that is 8284 parameters.

    Parameters
    ----------
    hidden
        Units; the paper has 70.
    outputs
        "logistic", the paper's: each output for itself, and as the loss the cross-entropy summed over them,
        -Σ_i [y_i log σ_i + (1 - y_i) log(1 - σ_i)]. "softmax": the loss of the other models, comparable with theirs.
    gradient
        "previous_step", the paper's: the copy of h(t-1), the context layer, is an input like any other, which no
        gradient passes. "through": back to the start of a text.
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int = 70,
        *,
        outputs: Outputs = "logistic",
        gradient: Gradient = "previous_step",
    ) -> None:
        super().__init__(vocabulary)
        for name, value, known in (("outputs", outputs, get_args(Outputs)), ("gradient", gradient, get_args(Gradient))):
            if value not in known:
                raise ConfigurationError(f"{name} must be one of {', '.join(known)}, not {value!r}")
        self.hidden = whole_number("hidden", hidden)
        self.gradient: Gradient = gradient
        self.embedding = OneHot(self.vocabulary)
        self.recurrence = nn.RNN(self.vocabulary, self.hidden, bias=False, batch_first=True)
        if outputs == "logistic":
            self.readout, self.output_scale = LogisticReadout(self.hidden, self.vocabulary), "activations"
        else:
            self.readout = LinearReadout(self.hidden, self.vocabulary)
        self.begin()

    def constants(self) -> dict[str, Any]:
        """What the weights do not tell; see `training.identity`."""
        outputs = "logistic" if isinstance(self.readout, LogisticReadout) else "softmax"
        return {"outputs": outputs, "gradient": self.gradient}

    def begin(self, batch: int = 1) -> None:
        """All units to 0."""
        self._state: Tensor = self.recurrence.all_weights[0][1].new_zeros(1, whole_number("batch", batch), self.hidden)

    def advance(self, tokens: Tensor) -> Tensor:
        """The hidden units (batch, time, hidden)."""
        inputs = self.embedding(tokens) - 0.5
        if not tokens.shape[1]:
            return inputs.new_empty(*tokens.shape, self.hidden)
        before = self._state
        truncated = self.gradient == "previous_step" and torch.is_grad_enabled()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not truncated):
            states, last = self.recurrence(inputs, before)
        self._state = last.detach()
        if not truncated:
            return states
        context = torch.cat([before[0][:, None], states[:, :-1]], 1)
        W_in, W_h = self.recurrence.all_weights[0]
        return torch.tanh(inputs @ W_in.T + context @ W_h.T)

    def loss_of(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean over targets (batch, time) of the cross-entropy in nats, of the kind that belongs to `outputs`."""
        readout = self.readout
        if not isinstance(readout, LogisticReadout):
            return super().loss_of(features, targets)
        counted = targets != IGNORED
        wanted = self.embedding(targets[counted])
        activations = readout.activations(features[counted])
        total = binary_cross_entropy_with_logits(activations, wanted.to(activations.dtype), reduction="sum")
        return total / max(1, len(wanted))


def train_in_stages(
    model: Any,
    corpora: Mapping[float, Any],
    *,
    options: TrainingOptions | None = None,
    folder: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> list[TrainingResult]:
    """Train on corpora of more and more complex sentences, one after the other (Tong et al. 2007, section 3.1).

    The shares of complex sentences are those in `STAGES`; the last corpus is that of the other models. Each stage is a
    `train` that goes on from the weights of the one before, with the same `options`, by default so many passes over its
    corpus that the four make `PASSES`. The paper used Netlab's scaled conjugate gradients on the whole corpus; this is
    Adam on windows of it, without weight decay.

    Parameters
    ----------
    model
        An `SRN`, or anything else that `train` takes.
    corpora
        Share of complex sentences -> tokens (time,); they are learned in the order of the shares.
    folder
        Each stage gets a folder of its own in it, `stage-0.25` and so on, from which it resumes.
    arguments
        Further ones of `train`, such as `corpus_valid` and `progress`.
    """
    from reservoir_hw.readout.training import TrainingOptions, train

    if not corpora:
        raise ConfigurationError("corpora is empty: give at least one, {share of complex sentences: tokens}")
    if options is None:
        epochs = PASSES // len(STAGES)
        options = TrainingOptions(epochs=epochs, context=64, batch=32, learning_rate=3e-3, weight_decay=0.0)
    results = []
    for share in sorted(corpora):
        place = None if folder is None else Path(folder) / f"stage-{share:g}"
        results.append(train(model, corpora[share], options=options, folder=place, **arguments))
    return results
