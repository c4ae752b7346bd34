"""A time loop of torch on a GPU as CUDA graphs.

A step is over sooner than its kernels can be launched one by one, so many steps are recorded in one graph, which is
launched at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reservoir_hw.backends.simulated.engines import TensorLoop
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms

# Time steps in one CUDA graph.
_GRAPH_STEPS = 64


class GraphedLoop:
    """Drives `loop` through graphs that are recorded when they are first needed, one for each batch size.

    What a graph reads beside inputs, state and the additive term, above all the weights and the other terms, must stay
    where and as it is.
    """

    def __init__(self, loop: TensorLoop) -> None:
        self._loop = loop
        self._graphs: dict[tuple[int, int, bool], _Graph] = {}

    @torch.inference_mode(False)
    @torch.no_grad()
    def __call__(self, u: Tensor, state: Tensor, loop: LoopTerms | None = None) -> tuple[Tensor, Tensor]:
        """(batch, time, inputs) and (batch, nodes) -> the states (batch, time, nodes) and the last of them."""
        batch, steps, _ = u.shape
        states = u.new_empty((batch, steps, state.shape[1]))
        begin = 0
        while begin < steps:
            # What does not fill a long graph goes step by step through a short one: recorded alike, rounded alike.
            size = _GRAPH_STEPS if steps - begin >= _GRAPH_STEPS else 1
            part = slice(begin, begin + size)
            here = None if loop is None else loop._replace(additive=loop.additive[:, part])
            key = (batch, size, loop is not None)
            if key not in self._graphs:
                self._graphs[key] = _Graph(self._loop, u[:, part], state, here)
            state = self._graphs[key].replay(u[:, part], state, here, states[:, part])
            begin += size
        return states, state


class _Graph:
    """Some steps as one recorded launch, with memory of its own."""

    def __init__(self, loop: TensorLoop, u: Tensor, state: Tensor, terms: LoopTerms | None) -> None:
        self._u, self._state = u.clone(), state.clone()
        self._terms = None if terms is None else terms._replace(additive=terms.additive.clone())
        # A first run outside the recording, on a stream of its own, lets the libraries set themselves up.
        aside = torch.cuda.Stream(u.device)
        aside.wait_stream(torch.cuda.current_stream(u.device))
        with torch.cuda.stream(aside):
            loop(self._u, self._state, self._terms)
        torch.cuda.current_stream(u.device).wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(u.device)
        with torch.cuda.device(u.device), torch.cuda.graph(self._graph, stream=stream):
            self._states, self._last = loop(self._u, self._state, self._terms)

    def replay(self, u: Tensor, state: Tensor, terms: LoopTerms | None, out: Tensor) -> Tensor:
        """Drive with `u` from `state`; fills `out` with the states and returns the last one."""
        self._u.copy_(u)
        self._state.copy_(state)
        if self._terms is not None and terms is not None:
            self._terms.additive.copy_(terms.additive)
        self._graph.replay()
        out.copy_(self._states)
        return self._last.clone()
