"""The character transformer that reservoirs are compared with (Köster & Uchida 2026, "Reservoir Computing as a
Language Model", section II.C).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.baselines.window_model import WindowModel
from reservoir_hw.readout.models.softmax import IGNORED, LinearReadout, cross_entropy
from reservoir_hw.readout.models.token_model import check_tokens


class CharTransformer(WindowModel):
    """Embedding + sinusoidal positions -> `layers` encoder layers -> linear readout.

    A layer normalises behind its two residual sums (post-norm, Vaswani et al. 2017): x = LN(x + attention(x)),
    x = LN(x + W_2 ReLU(W_1 x + b_1) + b_2), with `heads` heads of d / heads channels each, d = `embedding`.

    The paper's table I gives five counts of trainable parameters for V = 59 and d = 16, from 15067 to 155803. All five
    come out exactly as

        V d + (V d + V) + L [4 (d² + d) + (2 d d_h + d_h + d) + 2 · 2 d],    d_h = `hidden`, L = `layers`:

    an embedding; a readout of its own weights, not tied to it, with a bias; in each layer four projections of the
    attention with biases, two of the feed-forward part with biases, and two layer norms with weight and bias. So there
    is no norm behind the last layer, and positions are not trained. The number of heads does not count; with 16
    of them a head has one channel. The paper says nothing on dropout, positions and masks: dropout 0.1, sinusoids,
    post-norm and ReLU are those of the published code (github.com/fekoester/Shakespeare_Res).

    That code has no mask: every character of a window sees the whole window, and the last position alone predicts.
    `causal=False` is this. By default positions see only what lies before them, so that each can predict.

    What a position's features are depends on the last `context` tokens alone, numbered from the first of them. As long
    as a text is no longer than that, one pass gives all positions (with a mask); beyond, and without a mask everywhere,
    each position is the last of a window of its own, which takes a pass for each. Training wants windows of at most
    `context` tokens; without a mask with targets of -1 but for the last (`TrainingOptions(predict="last")`), which then
    is one pass too.

    Parameters
    ----------
    vocabulary, embedding, hidden, heads, layers
        V, d, d_h, h and L of the paper.
    context
        Tokens that a prediction can depend on; the paper has 32.
    dropout
        In training: of the attention, in the feed-forward part and in front of the residual sums.
    causal
        See above.
    """

    positions: Tensor

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 16,
        hidden: int = 64,
        heads: int = 4,
        layers: int = 4,
        context: int = 32,
        dropout: float = 0.1,
        causal: bool = True,
    ) -> None:
        super().__init__(vocabulary, context, causal=causal)
        width, heads = whole_number("embedding", embedding), whole_number("heads", heads)
        if width % heads:
            raise ConfigurationError(f"embedding {width} cannot be divided among {heads} heads: it must be a multiple")
        self.heads = heads
        rate = number_in("dropout", dropout, 0.0, 1.0, excluding=(1.0,))
        self.embedding = nn.Embedding(self.vocabulary, width)
        self.register_buffer("positions", _sinusoids(self.context, width), persistent=False)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, whole_number("hidden", hidden), rate, batch_first=True)
            for _ in range(whole_number("layers", layers))
        )
        self.readout = LinearReadout(width, self.vocabulary)

    def constants(self) -> dict[str, Any]:
        """What the weights do not tell; see `training.identity`."""
        return {"heads": self.heads, "causal": self.causal, "context": self.context}

    def encode(self, windows: Tensor) -> Tensor:
        """One pass over windows (batch, time) of at most `context` tokens: (batch, time, embedding)."""
        steps = windows.shape[1]
        x = self.embedding(windows) + self.positions[:steps]
        if not x.numel():
            return x
        mask = None
        if self.causal:
            mask = torch.ones(steps, steps, dtype=torch.bool, device=windows.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=self.causal)
        return x

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """As `TokenModel.loss`; without a mask, targets of the last positions alone take one pass."""
        alike = tokens.shape == targets.shape and tokens.ndim == 2 and 0 < tokens.shape[1] <= self.context
        if self.causal or not alike or bool((targets[:, :-1] != IGNORED).any()):
            return super().loss(tokens, targets)
        tokens = check_tokens(tokens, self.vocabulary)
        targets = check_tokens(targets, self.vocabulary, "targets", ignored=True)
        return cross_entropy(self.readout, self.encode(tokens)[:, -1:], targets[:, -1:])


def _sinusoids(steps: int, width: int) -> Tensor:
    """Positions (steps, width) of Vaswani et al. 2017: sin and cos of t / 10000^(2 i / width), in turn."""
    time = torch.arange(steps, dtype=torch.float64)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angle = time * torch.exp(-math.log(10000.0) * even / width)
    table = torch.stack([angle.sin(), angle.cos()], 2).reshape(steps, -1)
    return table[:, :width].float()
