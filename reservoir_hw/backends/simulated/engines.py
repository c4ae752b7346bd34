"""The engines of the simulated networks: a time loop, compiled or in torch, and the state that it goes on from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core.arrays import import_torch
from reservoir_hw.core.spec import DType

Activation = Literal["tanh", "relu", "identity"]


JointLoop: TypeAlias = Callable[[Any, Any, Sequence[LoopTerms | None]], tuple[Any, Any]]
"""`(u, states, terms)` of several networks, with an axis for them in front, to their states and the last of these.

`u` may have one entry for all. States are (members, batch, time, nodes), the last of them (members, batch, nodes).
"""


class Engine(Protocol):
    """Computes the equations of a kind and keeps their state."""

    name: str

    def reset(self, batch: int) -> None:
        """Bring the state to rest for this many sequences."""

    def run(self, u: Any, out: Any, loop: LoopTerms | None) -> Any:
        """(batch, time, inputs) -> (batch, time, nodes); `loop` acts on every new state. `out` may be filled."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Copies of the state; the first axis of each array is the sequence."""
        ...

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""

    def transition(self, u: Any, states: Any, loop: LoopTerms | None) -> Any:
        """One step from given states, (batch, inputs), (batch, nodes) -> (batch, nodes), where the kind is settable."""


class NumbaEngine:
    """Drives a network on the CPU.

    `loop(u, state, out, terms)` takes inputs (batch, time, inputs) and the state (batch, nodes), which it brings up to
    date in place, and returns the states (batch, time, nodes).
    """

    name = "numba"

    def __init__(self, loop: Callable[[Any, Any, Any, LoopTerms | None], Any], nodes: int, dtype: DType) -> None:
        self._loop, self._nodes, self._dtype = loop, nodes, np.dtype(dtype)

    def reset(self, batch: int) -> None:
        """Bring the state to rest for this many sequences."""
        self._state = np.zeros((batch, self._nodes), self._dtype)

    def run(self, u: np.ndarray, out: np.ndarray | None, loop: LoopTerms | None) -> np.ndarray:
        """(batch, time, inputs) -> (batch, time, nodes)."""
        return self._loop(u, self._state, out, loop)

    def transition(self, u: np.ndarray, states: np.ndarray, loop: LoopTerms | None) -> np.ndarray:
        """One step from given states."""
        given = states.copy()
        self._loop(np.ascontiguousarray(u[:, None]), given, None, loop)
        return given

    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the state."""
        return {"state": self._state.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""
        self._state = np.array(state["state"], self._dtype, order="C")


class TorchEngine:
    """Drives a network with a loop over tensors: plain torch, CUDA graphs or a Triton kernel, by its `name`.

    `loop(u, state, terms)` returns the states and the last of them, and leaves what it was given as it is.
    """

    def __init__(
        self,
        name: str,
        loop: Callable[[Any, Any, LoopTerms | None], tuple[Any, Any]],
        nodes: int,
        dtype: DType,
        device: str,
    ) -> None:
        self.name = name
        self._torch = import_torch("a simulated network with gradients, on a GPU, or without numba")
        self._loop, self._nodes = loop, nodes
        self._options = {"dtype": getattr(self._torch, dtype), "device": device}

    @contextlib.contextmanager
    def through(self, loop: Callable[[Any, Any, LoopTerms | None], tuple[Any, Any]]) -> Iterator[None]:
        """Meanwhile another loop computes what the own one would."""
        own, self._loop = self._loop, loop
        try:
            yield
        finally:
            self._loop = own

    def reset(self, batch: int) -> None:
        """Bring the state to rest for this many sequences."""
        with self._torch.inference_mode(False):
            self._state = self._torch.zeros((batch, self._nodes), **self._options)

    def run(self, u: Any, out: Any, loop: LoopTerms | None) -> Any:
        """(batch, time, inputs) -> (batch, time, nodes)."""
        del out
        states, last = self._loop(u, self._state, loop)
        # A graph that grew over calls would be held for ever: gradients reach back to the start of a call.
        # A copy outside inference mode: a later run with gradients could not go on from what was made inside.
        with self._torch.inference_mode(False):
            self._state = last.detach().clone()
        return states

    def transition(self, u: Any, states: Any, loop: LoopTerms | None) -> Any:
        """One step from given states."""
        return self._loop(u[:, None], states, loop)[1]

    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the state."""
        return {"state": self._state.cpu().numpy().copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""
        with self._torch.inference_mode(False):
            self._state = self._torch.tensor(state["state"], **self._options)
