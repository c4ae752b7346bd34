"""The engines of the simulations: a time loop, compiled or in torch, and the state that it goes on from."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from pydantic import Field

from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.core.arrays import import_torch
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.spec import DType

Activation = Literal["tanh", "relu", "identity"]

EngineName: TypeAlias = Literal["numba", "torch", "cuda_graphs", "triton"]

ArrayLoop: TypeAlias = Callable[[Any, Any, Any, LoopTerms | None], Any]
"""`(u, state, out, terms)` of one simulation to its states, for `NumbaEngine`.

`u` is (batch, time, inputs), the states are (batch, time, nodes), in `out` if that is given. `state` (batch, width) is
brought up to date in place. `terms` act on every new state.
"""

TensorLoop: TypeAlias = Callable[[Any, Any, LoopTerms | None], tuple[Any, Any]]
"""`(u, state, terms)` likewise to the states and the state after them, for `TorchEngine`: leaves what it was given."""

JointLoop: TypeAlias = Callable[[Any, Any, Sequence[LoopTerms | None]], tuple[Any, Any]]
"""`(u, states, terms)` of several networks, with an axis for them in front, to their states and the last of these.

`u` may have one entry for all. States are (members, batch, time, nodes), the last of them (members, batch, nodes).
"""


class NumbaEngine:
    """Drives a simulation on the CPU. Its state is (batch, width), at rest 0."""

    name = "numba"

    def __init__(self, loop: ArrayLoop, width: int, dtype: DType) -> None:
        self._loop, self._width, self._dtype = loop, width, np.dtype(dtype)

    def reset(self, batch: int) -> None:
        """Bring the state to rest for this many sequences."""
        self._state = np.zeros((batch, self._width), self._dtype)

    def run(self, u: np.ndarray, out: np.ndarray | None, terms: LoopTerms | None) -> np.ndarray:
        """(batch, time, inputs) -> (batch, time, nodes); `terms` act on every new state. `out` may be filled."""
        return self._loop(u, self._state, out, terms)

    def transition(self, u: np.ndarray, states: np.ndarray, terms: LoopTerms | None) -> np.ndarray:
        """One step from given states, (batch, inputs), (batch, nodes) -> (batch, nodes), where the kind is settable."""
        state = states[:, states.shape[1] - self._width :].copy()
        return self._loop(np.ascontiguousarray(u[:, None]), state, None, terms)[:, 0]

    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the state; the first axis is the sequence."""
        return {"state": self._state.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""
        self._state = np.array(state["state"], self._dtype, order="C")


class TorchEngine:
    """As `NumbaEngine`, with a loop over tensors: plain torch, CUDA graphs or a Triton kernel, by its `name`."""

    def __init__(self, name: EngineName, loop: TensorLoop, width: int, dtype: DType, device: str) -> None:
        self.name = name
        self._torch = import_torch("a simulated reservoir with gradients, on a GPU, or without numba")
        self._loop, self._width = loop, width
        self._options = {"dtype": getattr(self._torch, dtype), "device": device}

    @contextlib.contextmanager
    def through(self, loop: TensorLoop) -> Iterator[None]:
        """Meanwhile another loop computes what the own one would."""
        own, self._loop = self._loop, loop
        try:
            yield
        finally:
            self._loop = own

    def reset(self, batch: int) -> None:
        """Bring the state to rest for this many sequences."""
        with self._torch.inference_mode(False):
            self._state = self._torch.zeros((batch, self._width), **self._options)

    def run(self, u: Any, out: Any, terms: LoopTerms | None) -> Any:
        """(batch, time, inputs) -> (batch, time, nodes)."""
        states, last = self._loop(u, self._state, terms)
        # A graph that grew over calls would be held for ever: gradients reach back to the start of a call.
        # A copy outside inference mode: a later run with gradients could not go on from what was made inside.
        with self._torch.inference_mode(False):
            self._state = last.detach().clone()
        return states

    def transition(self, u: Any, states: Any, terms: LoopTerms | None) -> Any:
        """One step from given states."""
        return self._loop(u[:, None], states[:, states.shape[1] - self._width :], terms)[0][:, 0]

    def get_state(self) -> dict[str, np.ndarray]:
        """A copy of the state."""
        return {"state": self._state.cpu().numpy().copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `get_state` gave."""
        with self._torch.inference_mode(False):
            self._state = self._torch.tensor(state["state"], **self._options)


Engine: TypeAlias = NumbaEngine | TorchEngine


def engine_of(name: EngineName, loop: Any, width: int, dtype: DType, device: str) -> Engine:
    """The engine of this name for an `ArrayLoop` (numba) or a `TensorLoop` (all others)."""
    return NumbaEngine(loop, width, dtype) if name == "numba" else TorchEngine(name, loop, width, dtype, device)


# ---- Which engine drives a simulated reservoir: the one that is asked for, or else the one that the table names.


Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]

# Dense weights, in bytes, up to which the one program of a sequence reads them quicker than the kernels of a CUDA graph
# follow each other: 8 µs at 64 bytes a cycle. Nonzeros, likewise, up to which it is quicker than torch's launches.
# Both are calculated for an H100; `make gpu-check` measures.
TRITON_DENSE_BYTES = 640 * 1024
TRITON_NONZEROS = 200_000

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineChoice:
    """What is known and wanted of the engine of one reservoir.

    Parameters
    ----------
    wanted
        None leaves the choice to the table.
    offers
        The engines that the kind has for these weights.
    """

    wanted: EngineName | None
    kind: str
    device: str
    dtype: DType
    gradients: bool = False
    offers: Collection[EngineName] = get_args(EngineName)

    def check(self) -> None:
        """Raise `ConfigurationError` where the wanted engine cannot do what is asked on any machine."""
        engine, device = self.wanted, self.device
        if engine is None:
            return
        problem = None
        if engine not in self.offers:
            problem = f", but this {self.kind} can use only {', '.join(self.offers)}"
        elif self.gradients and engine != "torch":
            problem = ", but gradients pass through torch alone: use engine torch, or no gradients"
        elif engine == "numba" and device != "cpu":
            problem = f", which computes on the CPU, but reservoir.device is {device}"
        elif engine == "cuda_graphs" and device == "cpu":
            problem = ", which needs reservoir.device cuda; on the CPU use torch"
        elif engine == "triton" and self.dtype != "float32":
            problem = f", which computes in float32; for {self.dtype} use engine torch"
        if problem is not None:
            raise ConfigurationError(f"reservoir.engine is {engine}{problem}")

    def made(self, on_gpu: EngineName) -> EngineName:
        """The engine, of which `on_gpu` is the quickest on a GPU without gradients.

        Raises `ConfigurationError` as `check` does and where torch does not reach the device, and `MissingExtra` where
        a package is not installed.
        """
        self.check()
        if self.device != "cpu":
            _check_device(self.device)
        engine = self.wanted or self._by_table(on_gpu)
        if engine == "triton" and self.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ConfigurationError(
                "reservoir.engine is triton, which needs reservoir.device cuda; on the CPU it runs only, slowly, where "
                "TRITON_INTERPRET=1 is set before the start"
            )
        for name, there, extra in (("numba", have_numba, "sim"), ("triton", have_triton, "gpu")):
            if engine == name and not there():
                raise MissingExtra(
                    f"reservoir.engine is {name}, which is not installed: pip install 'reservoir-hw[{extra}]'"
                )
        return engine

    def _by_table(self, on_gpu: EngineName) -> EngineName:
        if self.gradients:
            return "torch"
        if self.device == "cpu":
            return "numba" if have_numba() else "torch"
        if on_gpu != "triton" or (self.dtype == "float32" and have_triton()):
            return on_gpu
        if self.dtype == "float32":
            log.warning(
                "triton would be quicker on %s, but is not installed: pip install 'reservoir-hw[gpu]'", self.device
            )
        return "cuda_graphs" if "cuda_graphs" in self.offers else "torch"


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


def _check_device(device: str) -> None:
    torch = import_torch("a simulated reservoir on a GPU")
    if not torch.cuda.is_available():
        raise ConfigurationError(f"reservoir.device is {device}, but torch finds no CUDA device here; use cpu")
    index, there = torch.device(device).index, torch.cuda.device_count()
    if index is not None and index >= there:
        raise ConfigurationError(f"reservoir.device is {device}, but the last CUDA device here is cuda:{there - 1}")
