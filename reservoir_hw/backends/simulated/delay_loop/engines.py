"""The engines of the delay loops: mask and DAC, a time loop, and the values in the loop that it goes on from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reservoir_hw.backends.simulated.delay_loop.physics import Equation
from reservoir_hw.backends.simulated.engines import EngineName
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core import arrays
from reservoir_hw.core.errors import InputRangeError
from reservoir_hw.core.signal import Mask, Quantiser
from reservoir_hw.core.threads import cores, share_out, threads_here

# Node updates under which a second thread costs more than it brings.
_THREADED = 20_000
# Numbers in one block of inputs that are tried on the DAC before the loop sees any of them.
_BLOCK = 1 << 20


class LoopEngine(ABC):
    """Masks the inputs, converts them by the `dac` if there is one, and keeps the values in the loop.

    `count_clipped` is told how many values the DAC clipped.
    """

    name: str
    _state: Any
    """(batch, delay), the oldest first."""

    def __init__(self, dac: Quantiser | None, count_clipped: Callable[[int], None]) -> None:
        self._dac, self._count_clipped = dac, count_clipped

    def run(self, u: Any, out: Any, loop: LoopTerms | None) -> Any:
        """(batch, time, inputs) -> (batch, time, nodes); `loop` acts on every new state. `out` may be filled."""
        states, self._state = self._advance(u, self._state, out, loop)
        return states

    def transition(self, u: Any, states: Any, loop: LoopTerms | None) -> Any:
        """One step from given states, where they are all that the loop holds."""
        delay = self._state.shape[1]
        return self._advance(u[:, None], states[:, states.shape[1] - delay :], None, loop)[0][:, 0]

    def check(self, u: Any) -> None:
        """Raise `InputRangeError`, before the loop has seen any of it, if masked inputs are beyond the DAC's range."""
        if self._dac is None or self._dac.out_of_range == "clip":
            return
        low, high = self._dac.range
        steps = max(1, _BLOCK // (len(u) * self._nodes))
        for first in range(0, u.shape[1], steps):
            drive = self.masked(u[:, first : first + steps], None)
            outside = (drive < low) | (drive > high)
            if outside.any():
                sequence, step, node = arrays.first_true(arrays.as_numpy(outside))
                raise InputRangeError(
                    f"the masked input at (sequence, step, node) = {(sequence, first + step, node)} is "
                    f"{float(drive[sequence, step, node]):g}, beyond the range [{low:g}, {high:g}] of the DAC; lower "
                    "mask.scaling (and raise physics.input_gain), widen nonidealities.drive.range, or set "
                    "out_of_range: clip to have it clipped and counted"
                )

    def _converted(self, drive: Any) -> Any:
        if self._dac is None:
            return drive
        drive, clipped = self._dac.apply(drive)
        self._count_clipped(clipped)
        return drive

    @property
    @abstractmethod
    def _nodes(self) -> int: ...

    @abstractmethod
    def reset(self, batch: int) -> None:
        """Bring the loop to rest for this many sequences."""

    @abstractmethod
    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the values in the loop."""

    @abstractmethod
    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""

    @abstractmethod
    def masked(self, u: Any, out: Any) -> Any:
        """What the mask makes of inputs (batch, time, inputs), to the bit as `Mask.apply`: (batch, time, nodes)."""

    @abstractmethod
    def _advance(self, u: Any, history: Any, out: Any, loop: LoopTerms | None) -> tuple[Any, Any]:
        """States (batch, time, nodes) and the values in the loop after them, from those before."""


class NumbaLoopEngine(LoopEngine):
    """Drives a loop on the CPU."""

    name = "numba"

    def __init__(
        self,
        mask: Mask,
        equation: Equation,
        delay_nodes: int,
        dtype: np.dtype[Any],
        dac: Quantiser | None,
        count_clipped: Callable[[int], None],
    ) -> None:
        from reservoir_hw.backends.simulated.delay_loop import cpu_loop

        super().__init__(dac, count_clipped)
        self._kernels = cpu_loop
        self._dtype, self._delay = dtype, delay_nodes
        self._columns = np.ascontiguousarray(mask.matrix.T, dtype)
        self._bias = mask.bias.astype(dtype)
        self._equation = (equation.code, *map(dtype.type, equation.numbers))

    @property
    def _nodes(self) -> int:
        return len(self._bias)

    def reset(self, batch: int) -> None:
        """Bring the loop to rest for this many sequences."""
        self._state = np.zeros((batch, self._delay), self._dtype)

    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the values in the loop."""
        return {"loop": self._state.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""
        self._state = np.array(state["loop"], self._dtype, order="C")

    def masked(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """What the mask makes of inputs, to the bit as `Mask.apply`."""
        masked = np.empty((*u.shape[:2], self._nodes), self._dtype) if out is None else out
        for given, driven in zip(np.ascontiguousarray(u), masked, strict=True):
            self._kernels.mask_inputs(self._columns, self._bias, given, driven)
        return masked

    def _advance(
        self, u: np.ndarray, history: np.ndarray, out: np.ndarray | None, loop: LoopTerms | None
    ) -> tuple[np.ndarray, np.ndarray]:
        batch, steps = u.shape[:2]
        u, history = np.ascontiguousarray(u), np.ascontiguousarray(history)
        if out is None:
            out = np.empty((batch, steps, self._nodes), self._dtype)
        if self._dac is not None:
            out[...] = self._converted(self.masked(u, out))
        scratch = np.empty((batch, 3, self._nodes), self._dtype)
        fixed = (self._columns, self._bias)
        then = (self._dac is not None, *self._equation)
        terms = self._terms(loop)

        def drive(b: int) -> None:
            self._kernels.sequence(
                *fixed, u[b], history[b], scratch[b], out[b], *then, *terms[:4], terms[4][b * terms[0]], *terms[5:]
            )

        share_out(drive, range(batch), threads_here(cores()) if out.size >= _THREADED else 1)
        return out, _after(history, out)

    def _terms(self, loop: LoopTerms | None) -> tuple[Any, ...]:
        number = self._dtype.type
        if loop is None:
            nothing = np.zeros((1, 1, 1), self._dtype)
            return False, number(np.inf), nothing[0, 0], nothing[0, 0], nothing, number(0), number(0)
        return (True, *loop)


class TensorLoopEngine(LoopEngine):
    """Drives a loop over tensors: plain torch or a Triton kernel, by its `name`.

    `loop(drive, history, terms)` writes the states over what drives the nodes, (batch, time, nodes), and leaves the
    values in the loop before them, (batch, delay), as they are.
    """

    def __init__(
        self,
        name: EngineName,
        loop: Callable[[Any, Any, LoopTerms | None], None],
        mask: Mask,
        delay_nodes: int,
        dtype: np.dtype[Any],
        device: str,
        dac: Quantiser | None,
        count_clipped: Callable[[int], None],
    ) -> None:
        super().__init__(dac, count_clipped)
        self.name = name
        self._torch = arrays.import_torch("a simulated delay loop on a GPU, or without numba")
        self._loop, self._delay = loop, delay_nodes
        self._options = {"dtype": getattr(self._torch, dtype.name), "device": device}
        self._columns = self._tensor(np.ascontiguousarray(mask.matrix.T, dtype))
        self._bias = self._tensor(mask.bias.astype(dtype))

    @property
    def _nodes(self) -> int:
        return len(self._bias)

    def reset(self, batch: int) -> None:
        """Bring the loop to rest for this many sequences."""
        self._state = self._torch.zeros((batch, self._delay), **self._options)

    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the values in the loop."""
        return {"loop": self._state.cpu().numpy().copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""
        self._state = self._tensor(state["loop"])

    def masked(self, u: Any, out: Any) -> Any:
        """What the mask makes of inputs, to the bit as `Mask.apply`."""
        masked = u.new_empty((*u.shape[:2], self._nodes)) if out is None else out
        masked[...] = self._bias
        for channel, column in enumerate(self._columns):
            # Channel after channel: a matrix product would round by the number of rows.
            masked += u[..., channel, None] * column
        return masked

    def _advance(self, u: Any, history: Any, out: Any, loop: LoopTerms | None) -> tuple[Any, Any]:
        states = self._converted(self.masked(u, out)).contiguous()
        # The states are of the dtype that was declared, whatever the caller's own model computes in.
        with self._torch.autocast(u.device.type, enabled=False):
            self._loop(states, history.contiguous(), loop)
        return states, _after(history, states)

    def _tensor(self, array: np.ndarray) -> Any:
        return self._torch.tensor(array, **self._options)


def _after(history: Any, states: Any) -> Any:
    """The values in the loop after these states, (batch, delay), in memory of their own."""
    flat = states.reshape(len(states), -1)
    kept = max(0, history.shape[1] - flat.shape[1])
    new = history.shape[1] - kept
    return arrays.concatenate([history[:, new:], flat[:, flat.shape[1] - new :]], 1)
