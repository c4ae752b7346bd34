"""The decoder that layered reservoirs are compared with: that of GPT-2 (Radford et al. 2019), at any size."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.baselines.window_model import WindowModel
from reservoir_hw.readout.models.softmax import LinearReadout

_SPREAD = 0.02


class Gpt(WindowModel):
    """Embedding + trained positions -> `layers` blocks -> LayerNorm -> the embedding once more, tied, without bias.

    A block normalises in front of its two parts (pre-norm): x = x + W_o attention(LN(x)), x = x + W_2 GELU(W_1 LN(x)),
    with `heads` heads of width / heads channels each and 4 width hidden units, all with biases. V tokens, C positions,
    L layers and d channels take

        V d + C d + L (12 d² + 13 d) + 2 d

    weights: 124,439,808 for V = 50257, C = 1024, L = 12, d = 768, as GPT-2 has. Weights begin normal with standard
    deviation 0.02, those in front of the residual sums with 0.02 / √(2 L); biases begin at 0.

    Parameters
    ----------
    vocabulary, width, layers, heads
        V, d and L; heads divide d.
    context
        C, tokens that a prediction can depend on.
    dropout
        In training: of the embedding, of the attention, and in front of the residual sums.
    """

    def __init__(
        self, vocabulary: int, *, width: int, layers: int, heads: int = 4, context: int, dropout: float = 0.0
    ) -> None:
        super().__init__(vocabulary, context)
        width, layers, heads = (
            whole_number(name, value) for name, value in (("width", width), ("layers", layers), ("heads", heads))
        )
        if width % heads:
            raise ConfigurationError(f"width {width} cannot be divided among {heads} heads: it must be a multiple")
        rate = number_in("dropout", dropout, 0.0, 1.0, excluding=(1.0,))
        self.heads = heads
        self.embedding = nn.Embedding(self.vocabulary, width)
        self.positions = nn.Parameter(torch.empty(self.context, width))
        self.dropout = nn.Dropout(rate)
        self.blocks = nn.ModuleList(_Block(width, heads, rate) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.readout = LinearReadout(width, self.vocabulary, bias=False)
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
