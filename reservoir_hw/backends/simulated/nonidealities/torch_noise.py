"""Random numbers by (seed, sequence, step) on the device that needs them: the words of `core/seeds.py` in torch.

Philox4x64-10 (Salmon et al. 2011) multiplies unsigned numbers of 64 bits. torch has only signed ones, whose sums and
products have the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.backends.simulated.nonidealities.noise import Array, Numbers
from reservoir_hw.core.seeds import WORDS, stream_key

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW = 0xFFFFFFFF


class TorchNumbers(Numbers):
    """Tensors on one device, as the non-idealities of a torch engine hold them."""

    def __init__(self, dtype: np.dtype[Any], device: str) -> None:
        super().__init__(dtype)
        self._device = device

    def sin(self, x: Tensor) -> Tensor:
        """Sin x, element by element."""
        return torch.sin(x)

    def number(self, x: float) -> float:
        """x as the engine's dtype holds it."""
        return float(self._dtype.type(x))

    # Outside inference mode: a later run with gradients could not use what was made inside.
    @torch.inference_mode(False)
    def array(self, x: Array) -> Tensor:
        """A copy on the device."""
        return torch.tensor(x, device=self._device)

    def rounded(self, x: Tensor) -> Tensor:
        """In the engine's dtype."""
        return x.to(getattr(torch, self._dtype.name))

    def uniform(self, seed: int, sequences: Array, first: int, steps: int, size: int, name: str) -> Tensor:
        """`core.seeds.step_uniform` of several sequences: (batch, steps, size)."""
        return step_uniform(seed, self.array(sequences), first, steps, size, name)

    def normal(self, seed: int, sequences: Array, first: int, steps: int, size: int, name: str) -> Tensor:
        """`core.seeds.step_noise` of several sequences: (batch, steps, size)."""
        return step_noise(seed, self.array(sequences), first, steps, size, name)


def philox_words(key: tuple[int, int], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """The four words of each counter: the bits of unsigned numbers in int64 tensors, of the counters' common shape."""
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        high_a, low_a = _product(a, _MULTIPLIERS[0])
        high_c, low_c = _product(c, _MULTIPLIERS[1])
        a, b, c, d = (high_c ^ b) ^ _signed(first), low_c, (high_a ^ d) ^ _signed(second), low_a
        first, second = first + _WEYL[0], second + _WEYL[1]
    return a, b, c, d


def step_uniform(seed: int, sequences: Tensor, first: int, steps: int, size: int, name: str) -> Tensor:
    """As `core.seeds.step_uniform`, to the bit, for several sequences: (batch,) -> (batch, steps, size), float64."""
    blocks = -(-size // WORDS)
    # numpy counts up before it draws.
    number = torch.arange(first * blocks + 1, (first + steps) * blocks + 1, device=sequences.device)
    nothing = torch.zeros_like(number)
    words = philox_words((seed, stream_key(name)), (number, nothing, sequences[:, None], nothing))
    uniform = _shift_(torch.stack(words, -1), 11).double() * 2.0**-53
    return uniform.view(len(sequences), steps, blocks * WORDS)[..., :size]


def step_noise(seed: int, sequences: Tensor, first: int, steps: int, size: int, name: str) -> Tensor:
    """As `core.seeds.step_noise`, within rounding, for several sequences: (batch,) -> (batch, steps, size), float64."""
    pairs = -(-size // 2)
    uniform = step_uniform(seed, sequences, first, steps, 2 * pairs, name)
    # Copies without gaps: torch rounds its functions otherwise by the strides of what it gets, which depend on `steps`.
    radius = torch.sqrt(-2 * torch.log1p(-uniform[..., :pairs].contiguous()))
    angle = 2 * np.pi * uniform[..., pairs:].contiguous()
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], -1)[..., :size]


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 64 bits of an unsigned product, by halves of 32 bits (Knuth, TAOCP 4.3.1)."""
    x_high, x_low = _shift_(x.clone(), 32), x & _LOW
    high, low = factor >> 32, factor & _LOW
    middle = _shift_(x_low * low, 32).add_(x_high, alpha=low)
    other = (middle & _LOW).add_(x_low, alpha=high)
    upper = _shift_(middle, 32).add_(_shift_(other, 32)).add_(x_high, alpha=high)
    return upper, x * _signed(factor)


def _shift_(x: Tensor, bits: int) -> Tensor:
    """x as unsigned numbers, shifted to the right in place."""
    return x.bitwise_right_shift_(bits).bitwise_and_(2 ** (64 - bits) - 1)


def _signed(x: int) -> int:
    """The int64 number with the lower 64 bits of x."""
    return (x + 2**63) % 2**64 - 2**63
