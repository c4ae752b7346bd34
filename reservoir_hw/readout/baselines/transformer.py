"""Transformers that reservoirs are compared with: the character transformer of Köster & Uchida 2026 ("Reservoir
Computing as a Language Model", section II.C), and GPT-2.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.models.softmax import IGNORED, LinearReadout, cross_entropy
from reservoir_hw.readout.models.token_model import TokenModel, check_tokens

# Windows that are encoded at once, where each position has one of its own.
_WINDOWS = 512


class WindowModel(TokenModel):
    """A language model that sees a window of the last `context` tokens: abstract base.

    A model writes `encode`, and sets `readout`. The features of a position depend on its window alone, in which
    positions count from 0. With a mask (`causal`), all positions of a text of at most `context` tokens come out of one
    pass of `encode`. In a longer text each position after the first `context` tokens takes a pass of its own, over the
    window that ends there. Without a mask every position takes a pass of its own.
    """

    def __init__(
        self, vocabulary: int, width: int, heads: int, context: int, dropout: float, *, causal: bool = True
    ) -> None:
        super().__init__(vocabulary)
        self.width, self.heads = whole_number("width", width), whole_number("heads", heads)
        if self.width % self.heads:
            raise ConfigurationError(f"width {width} cannot be divided among {heads} heads: it must be a multiple")
        self.rate = number_in("dropout", dropout, 0.0, 1.0, excluding=(1.0,))
        self.embedding = nn.Embedding(self.vocabulary, self.width)
        self.context = whole_number("context", context)
        self.causal = bool(causal)
        self._past: Tensor | None = None

    @abstractmethod
    def encode(self, windows: Tensor) -> Tensor:
        """One pass over windows (batch, time) of at most `context` tokens: (batch, time, width)."""

    def begin(self, batch: int = 1) -> None:
        """No tokens yet."""
        self._past = None

    def advance(self, tokens: Tensor) -> Tensor:
        """Features (batch, time, width)."""
        text = tokens if self._past is None else torch.cat([self._past, tokens], 1)
        done, steps = text.shape[1] - tokens.shape[1], tokens.shape[1]
        # The window of these positions begins with the text.
        short = min(self.context, text.shape[1]) - done
        if self.causal:
            parts = [self.encode(text[:, : done + short])[:, done:]]
        else:
            parts = [self.encode(text[:, : done + step + 1])[:, -1:] for step in range(short)]
        if steps > short:
            windows = text[:, 1:].unfold(1, self.context, 1)
            flat = windows.reshape(-1, self.context).split(_WINDOWS)
            last = torch.cat([self.encode(part)[:, -1] for part in flat])
            parts.append(last.reshape(*windows.shape[:2], -1))
        # The next token and the last ones before it make a window.
        self._past = text[:, -(self.context - 1) :] if self.context > 1 else text[:, :0]
        return torch.cat(parts, 1) if parts else self.embedding(tokens)

    def last_features(self, tokens: Tensor) -> Tensor:
        """As `TokenModel.last_features`; one pass over texts that are no longer than the context."""
        if not 0 < tokens.shape[-1] <= self.context:
            return super().last_features(tokens)
        return self.encode(check_tokens(tokens, self.vocabulary))[:, -1]


class CharTransformer(WindowModel):
    """Embedding + sinusoidal positions -> `layers` encoder layers -> linear readout.

    A layer normalises after each of its two residual sums (post-norm, Vaswani et al. 2017): x = LN(x + attention(x)),
    x = LN(x + W_2 ReLU(W_1 x + b_1) + b_2), with `heads` heads of d / heads channels each, d = `embedding`.

    The paper's table I gives five counts of trainable parameters for V = 59 and d = 16, from 15067 to 155803. All five
    come out exactly as

        V d + (V d + V) + L [4 (d² + d) + (2 d d_h + d_h + d) + 2 · 2 d],    d_h = `hidden`, L = `layers`:

    an embedding; a readout with a bias, whose weights are not those of the embedding; in each layer four projections of
    the attention and two of the feed-forward part, all with biases, and two layer norms with weight and bias. So there
    is no norm after the last layer, and positions are not trained. The number of heads changes no count; with 16 heads
    each has one channel. The paper does not mention dropout, positions and masks: dropout 0.1, sinusoids, post-norm and
    ReLU are those of the published code (github.com/fekoester/Shakespeare_Res).

    That code has no mask: every character sees its whole window, and only the last position of a window predicts.
    `causal=False` does the same. By default a position sees what lies before it only, so that each position predicts.

    Train on windows of at most `context` tokens, which take one pass (`WindowModel`). Without a mask that needs targets
    for the last position alone (`TrainingOptions(predict="last")`).

    Parameters
    ----------
    vocabulary, embedding, hidden, heads, layers
        V, d, d_h, h and L of the paper.
    context
        Tokens that a prediction can depend on; the paper has 32.
    dropout
        In training: of the attention, in the feed-forward part and before the residual sums.
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
        super().__init__(vocabulary, embedding, heads, context, dropout, causal=causal)
        self.register_buffer("positions", _sinusoids(self.context, self.width), persistent=False)
        hidden = whole_number("hidden", hidden)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(self.width, self.heads, hidden, self.rate, batch_first=True)
            for _ in range(whole_number("layers", layers))
        )
        self.readout = LinearReadout(self.width, self.vocabulary)

    def constants(self) -> dict[str, Any]:
        """What the weights do not tell; see `training.identity`."""
        return {"heads": self.heads, "causal": self.causal, "context": self.context}

    def encode(self, windows: Tensor) -> Tensor:
        """One pass over windows (batch, time) of at most `context` tokens: (batch, time, embedding)."""
        steps = windows.shape[1]
        x = self.embedding(windows) + self.positions[:steps]
        if not x.numel():
            return x
        mask = torch.ones(steps, steps, dtype=torch.bool, device=windows.device).triu(1) if self.causal else None
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=self.causal)
        return x

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """As `TokenModel.loss`; without a mask, targets of the last positions alone take one pass."""
        alike = tokens.shape == targets.shape and tokens.ndim == 2 and 0 < tokens.shape[1] <= self.context
        if self.causal or not alike or bool((targets[:, :-1] != IGNORED).any()):
            return super().loss(tokens, targets)
        targets = check_tokens(targets, self.vocabulary, "targets", ignored=True)
        return cross_entropy(self.readout, self.last_features(tokens), targets[:, -1])


def _sinusoids(steps: int, width: int) -> Tensor:
    """Positions (steps, width) of Vaswani et al. 2017: sin and cos of t / 10000^(2 i / width), in turn."""
    time = torch.arange(steps, dtype=torch.float64)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angle = time * torch.exp(-math.log(10000.0) * even / width)
    table = torch.stack([angle.sin(), angle.cos()], 2).reshape(steps, -1)
    return table[:, :width].float()


# ---- The decoder of GPT-2 (Radford et al. 2019), at any size: layered reservoirs are compared with it.


_SPREAD = 0.02


class Gpt(WindowModel):
    """Embedding + trained positions -> `layers` blocks -> LayerNorm -> readout, which is the embedding, without a bias.

    A block normalises before each of its two parts (pre-norm): x = x + W_o attention(LN(x)),
    x = x + W_2 GELU(W_1 LN(x)). It has `heads` heads of width / heads channels each and 4 width hidden units; all
    layers have biases. With V tokens, C positions, L layers and d channels there are

        V d + C d + L (12 d² + 13 d) + 2 d

    weights: 124,439,808 for V = 50257, C = 1024, L = 12, d = 768, as in GPT-2. Weights start from a normal distribution
    of standard deviation 0.02, those right before the residual sums of 0.02 / √(2 L); biases start at 0.

    Parameters
    ----------
    vocabulary, width, layers, heads
        V, d and L; heads divide d.
    context
        C, tokens that a prediction can depend on.
    dropout
        In training: of the embedding, of the attention, and before the residual sums.
    """

    def __init__(
        self, vocabulary: int, *, width: int, layers: int, heads: int = 4, context: int, dropout: float = 0.0
    ) -> None:
        super().__init__(vocabulary, width, heads, context, dropout)
        layers = whole_number("layers", layers)
        self.positions = nn.Parameter(torch.empty(self.context, self.width))
        self.dropout = nn.Dropout(self.rate)
        self.blocks = nn.ModuleList(_Block(self.width, self.heads, self.rate) for _ in range(layers))
        self.norm = nn.LayerNorm(self.width)
        self.readout = LinearReadout(self.width, self.vocabulary, bias=False)
        self.readout.weight = self.embedding.weight
        nn.init.normal_(self.positions, std=_SPREAD)
        for name, module in self.named_modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                last = name.endswith(("attended", "shrink"))
                nn.init.normal_(module.weight, std=_SPREAD / math.sqrt(2 * layers) if last else _SPREAD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def constants(self) -> dict[str, Any]:
        """What the weights do not tell; see `training.identity`."""
        return {"heads": self.heads}

    def encode(self, windows: Tensor) -> Tensor:
        """One pass over windows (batch, time) of at most `context` tokens: (batch, time, width)."""
        x = self.embedding(windows) + self.positions[: windows.shape[1]]
        if not x.numel():
            return x
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, rate: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.norm_attention, self.norm_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projected, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu = nn.GELU(approximate="tanh")
        self.dropout = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.projected(self.norm_attention(x)).view(batch, time, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.rate if self.training else 0.0
        )
        x = x + self.dropout(self.attended(seen.transpose(1, 2).reshape(batch, time, width)))
        return x + self.dropout(self.shrink(self.gelu(self.grow(self.norm_hidden(x)))))
