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
ETA, GAMMA = 15500, 2048
"""Strengths of the nonlinearity and of the inputs; 16384 is 1."""
DECAY = 13414
"""What a node keeps of its neighbour, exp(-theta)."""
SEED = 1
"""Of the mask."""
_WIDEST = (1 << 16) - 1


class VirtualNodes:
    """A board's device, of so many nodes and inputs. It is at rest when it is made."""

    def __init__(self, nodes: int = 50, inputs: int = 1) -> None:
        self.nodes, self.inputs = nodes, inputs
        self._mask = mask(nodes, inputs, SEED)
        self.content = f"VN {ETA} {GAMMA} {DECAY} {SEED}"
        """What decides about its states, as boards declare it."""
        self.reset()

    def reset(self) -> None:
        """Back to rest: all nodes are 0."""
        self._states = np.zeros(self.nodes, np.int64)

    def step(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """One period: int16 inputs (inputs,) -> int16 states (nodes,)."""
        driven = np.clip(self._mask @ np.asarray(counts, np.int64), -_WIDEST, _WIDEST)
        z = np.clip(self._states + _divided(GAMMA * driven, ONE), -_WIDEST, _WIDEST)
        forced = (ONE - DECAY) * _divided(ETA * z, ONE + np.abs(z))
        last, states = int(self._states[-1]), []
        for force in forced.tolist():
            total = DECAY * last + force
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
