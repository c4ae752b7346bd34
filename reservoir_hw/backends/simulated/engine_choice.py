"""Which engine drives a simulated reservoir: the one that is asked for, or else the one that the table names."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Collection
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from reservoir_hw.core.arrays import import_torch
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.spec import DType

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
