"""The engines of the simulated networks: a time loop, compiled or in torch, and the state that it goes on from."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import numpy as np
from pydantic import Field

from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core.arrays import import_torch
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
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


# ---- Which engine drives a simulated reservoir: the one that is asked for, or else the one that the table names.


EngineName: TypeAlias = Literal["numba", "torch", "cuda_graphs", "triton"]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]

ENGINE_HELP = "numba, torch, cuda_graphs or triton; by default the quickest that fits"

# Dense weights, in bytes, up to which the one program of a sequence reads them quicker than the kernels of a CUDA graph
# follow each other: 8 µs at 64 bytes a cycle. Nonzeros, likewise, up to which it is quicker than torch's launches.
# Both are calculated for an H100; `make gpu-check` measures.
TRITON_DENSE_BYTES = 640 * 1024
TRITON_NONZEROS = 200_000

log = logging.getLogger(__name__)


def choose_engine(
    wanted: EngineName | None,
    *,
    kind: str,
    device: str,
    gradients: bool,
    dtype: DType,
    offers: Collection[EngineName],
    on_gpu: EngineName,
) -> EngineName:
    """The engine of one reservoir.

    `offers` are the engines that the kind has for these weights, `on_gpu` the one that is quickest on a GPU without
    gradients. Raises `ConfigurationError` where the wanted engine cannot do what is asked, or torch does not reach the
    device, and `MissingExtra` where a package is not installed.
    """
    check_engine(wanted, kind=kind, device=device, gradients=gradients, dtype=dtype, offers=offers)
    if device != "cpu":
        _check_device(device)
    engine = wanted or _by_table(device, gradients, dtype, offers, on_gpu)
    if engine == "triton" and device == "cpu" and not interprets_triton():
        raise ConfigurationError(
            "reservoir.engine is triton, which needs reservoir.device cuda; on the CPU it runs only, slowly, where "
            "TRITON_INTERPRET=1 is set before the start"
        )
    if engine == "numba" and not have_numba():
        raise MissingExtra("reservoir.engine is numba, which is not installed: pip install 'reservoir-hw[sim]'")
    if engine == "triton" and not have_triton():
        raise MissingExtra("reservoir.engine is triton, which is not installed: pip install 'reservoir-hw[gpu]'")
    return engine


def check_engine(
    engine: EngineName | None,
    *,
    kind: str,
    device: str,
    gradients: bool,
    dtype: DType,
    offers: Collection[EngineName],
) -> None:
    """Raise `ConfigurationError` where the wanted engine cannot do what is asked on any machine."""
    if engine is None:
        return
    if engine not in offers:
        raise ConfigurationError(f"reservoir.engine is {engine}, but this {kind} can use only {', '.join(offers)}")
    if gradients and engine != "torch":
        raise ConfigurationError(
            f"reservoir.engine is {engine}, but gradients pass through torch alone: use engine torch, or no gradients"
        )
    if engine == "numba" and device != "cpu":
        raise ConfigurationError(
            f"reservoir.engine is numba, which computes on the CPU, but reservoir.device is {device}"
        )
    if engine == "cuda_graphs" and device == "cpu":
        raise ConfigurationError(
            "reservoir.engine is cuda_graphs, which needs reservoir.device cuda; on the CPU use torch"
        )
    if engine == "triton" and dtype != "float32":
        raise ConfigurationError(f"reservoir.engine is triton, which computes in float32; for {dtype} use engine torch")


def _by_table(
    device: str, gradients: bool, dtype: DType, offers: Collection[EngineName], on_gpu: EngineName
) -> EngineName:
    if gradients:
        return "torch"
    if device == "cpu":
        return "numba" if have_numba() else "torch"
    if on_gpu != "triton" or (dtype == "float32" and have_triton()):
        return on_gpu
    if dtype == "float32":
        log.warning("triton would be quicker on %s, but is not installed: pip install 'reservoir-hw[gpu]'", device)
    return "cuda_graphs" if "cuda_graphs" in offers else "torch"


def network_engine_on_gpu(*, sparse: bool, nonzeros: int, storage_bytes: int) -> EngineName:
    """The quickest engine of a network on a GPU.

    `nonzeros` counts the recurrent weights of all its matrices, each of `storage_bytes`. The batch does not matter:
    sequences are programs side by side, and those of a large network are one product.
    """
    if sparse:
        return "triton" if nonzeros <= TRITON_NONZEROS else "torch"
    return "triton" if nonzeros * storage_bytes <= TRITON_DENSE_BYTES else "cuda_graphs"


def have_numba() -> bool:
    """Whether the compiled CPU kernels can be had, without importing them."""
    return importlib.util.find_spec("numba") is not None


def have_triton() -> bool:
    """Whether triton can be imported, without doing so."""
    return importlib.util.find_spec("triton") is not None


def interprets_triton() -> bool:
    """Whether triton interprets its kernels on the CPU in this process, as its own variable says."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _check_device(device: str) -> None:
    torch = import_torch("a simulated reservoir on a GPU")
    if not torch.cuda.is_available():
        raise ConfigurationError(f"reservoir.device is {device}, but torch finds no CUDA device here; use cpu")
    index, there = torch.device(device).index, torch.cuda.device_count()
    if index is not None and index >= there:
        raise ConfigurationError(f"reservoir.device is {device}, but the last CUDA device here is cuda:{there - 1}")
