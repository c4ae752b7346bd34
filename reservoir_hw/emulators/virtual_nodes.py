"""The device of the emulated boards: virtual nodes of a Mackey-Glass delay loop, in integers alone.

Numbers are Q1.14: the integer 16384 is 1.0, and an int16 holds -2 to 2. For node i at step n, all divisions rounded
towards zero (Appeltant et al. 2011, p = 1, with the exponentials as constants):

    s_i  = clip(sum_j m_ij u_j(n))                       m_ij = ±1
    z_i  = clip(x_i(n - 1) + gamma s_i / 2^14)           clip to ±(2^16 - 1)
    f_i  = eta z_i / (2^14 + |z_i|)
    x_i  = (decay x_(i-1)(n) + (2^14 - decay) f_i) / 2^14,    x_(-1)(n) = x_(N-1)(n - 1)

Each product fits into an int32, so that a microcontroller computes it as it stands. The same equations in C are in
`hardware/virtual_nodes.h`; its states are equal to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ONE = 1 << 14
SCALE = 1.0 / ONE
"""Value of one count of inputs and states."""
_WIDEST = (1 << 16) - 1
_LARGEST = (1 << 15) - 1


class VirtualNodes:
    """A board's device. It is at rest when it is made.

    Args:
        nodes, inputs: Widths.
        eta: Strength of the nonlinearity, 0 to 32767; 16384 is 1.
        gamma: Strength of the inputs, 0 to 32767; 16384 is 1.
        decay: What a node keeps of its neighbour, exp(-theta), 0 to 16384.
        seed: Of the mask, 1 to 2^32 - 1.
    """

    def __init__(
        self,
        nodes: int = 50,
        inputs: int = 1,
        *,
        eta: int = 15500,
        gamma: int = 2048,
        decay: int = 13414,
        seed: int = 1,
    ) -> None:
        if nodes < 1 or inputs < 1 or not (0 <= max(eta, gamma) <= _LARGEST and min(eta, gamma, decay) >= 0):
            raise ValueError("nodes and inputs are at least 1, eta and gamma 0 to 32767")
        if decay > ONE or not 0 < seed < 1 << 32:
            raise ValueError("decay is 0 to 16384, seed 1 to 2^32 - 1")
        self.nodes, self.inputs = nodes, inputs
        self._eta, self._gamma, self._decay = eta, gamma, decay
        self._mask = mask(nodes, inputs, seed)
        self.content = f"VN {eta} {gamma} {decay} {seed}"
        """What decides about its states, as boards declare it."""
        self.reset()

    def reset(self) -> None:
        """Back to rest: all nodes are 0."""
        self._states = np.zeros(self.nodes, np.int64)

    def step(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """One period: int16 inputs (inputs,) -> int16 states (nodes,)."""
        driven = np.clip(self._mask @ np.asarray(counts, np.int64), -_WIDEST, _WIDEST)
        z = np.clip(self._states + _divided(self._gamma * driven, ONE), -_WIDEST, _WIDEST)
        forced = (ONE - self._decay) * _divided(self._eta * z, ONE + np.abs(z))
        last, states = int(self._states[-1]), []
        for force in forced.tolist():
            total = self._decay * last + force
            last = total // ONE if total >= 0 else -(-total // ONE)
            states.append(last)
        self._states = np.array(states, np.int64)
        return self._states.astype(np.int16)

    def run(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """int16 inputs (time, inputs) -> int16 states (time, nodes), from where the last step ended."""
        return np.array([self.step(row) for row in counts], np.int16).reshape(-1, self.nodes)


def mask(nodes: int, inputs: int, seed: int) -> NDArray[np.int64]:
    """Signs (nodes, inputs), drawn row by row: bit 31 of xorshift32 (13, 17, 5; Marsaglia 2003) means -1."""
    signs, word = [], seed
    for _ in range(nodes * inputs):
        word ^= word << 13 & 0xFFFFFFFF
        word ^= word >> 17
        word ^= word << 5 & 0xFFFFFFFF
        signs.append(-1 if word >> 31 else 1)
    return np.array(signs, np.int64).reshape(nodes, inputs)


def _divided(numbers: NDArray[np.int64], by: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Rounded towards zero, as C does it."""
    return np.sign(numbers) * (np.abs(numbers) // by)
