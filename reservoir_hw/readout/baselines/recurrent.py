"""Language models with a trained recurrence: LSTM and GRU."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.models.embeddings import OneHot
from reservoir_hw.readout.models.softmax import LinearReadout
from reservoir_hw.readout.models.token_model import TokenModel

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
        between = rate if layers > 1 else 0.0
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.recurrence = kind(width, self.hidden, layers, batch_first=True, dropout=between)
        self.readout = LinearReadout(self.hidden, self.vocabulary)
        self._state: Any = None

    def begin(self, batch: int = 1) -> None:
        """All units to 0."""
        del batch
        self._state = None

    def advance(self, tokens: Tensor) -> Tensor:
        """The units of the last layer, (batch, time, hidden). Gradients reach back to the start of the call."""
        vectors = self.dropout(self.embedding(tokens))
        if not tokens.shape[1]:
            return vectors.new_empty(*tokens.shape, self.hidden)
        features, state = self.recurrence(vectors, self._state)
        self._state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return self.dropout(features)
