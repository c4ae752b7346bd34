"""Graphs made ready to run, by onnxruntime."""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.threads import quiet_session

# In onnxruntime 1.16 it ends the process where it meets a sum whose axes are left out.
_DISABLED_OPTIMIZERS = ["AttentionFusion"]

_FIRST_WITH_NUMPY_2 = (1, 19)

if TYPE_CHECKING:
    import onnxruntime

    from reservoir_hw.readout.edge.bundle import Bundle


def import_onnxruntime() -> Any:
    """The runtime, or one sentence that says how to get one that works with the numpy that is here."""
    try:
        installed = version("onnxruntime")
    except PackageNotFoundError:
        # Some builds have another name. If there is none at all, the import says so.
        installed = ""
    numbers = tuple(map(int, re.findall(r"\d+", installed)[:2]))
    if numbers and numbers < _FIRST_WITH_NUMPY_2 and int(np.__version__.split(".")[0]) >= 2:
        raise MissingExtra(
            f"onnxruntime {installed} was built for numpy 1 and would crash with numpy {np.__version__}: "
            "pip install 'onnxruntime>=1.19' (or 'numpy<2')"
        )
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(f"running a bundle needs onnxruntime: pip install 'reservoir-hw[edge]' ({error})") from error
    return onnxruntime


def first_line(error: Exception) -> str:
    """What the runtime says, without what a terminal would obey: names of a foreign graph are in it."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:300]


def make_session(bundle: Bundle, index: int, threads: int = 1) -> onnxruntime.InferenceSession:
    """A session on the CPU for a segment of a bundle, which may be closed afterwards.

    The runtime gets the checked bytes of the graph and the mapped weights: it never opens a file. What it rearranges
    for its kernels it copies (the matrices of MatMul); the rest is read from the mapped file.

    Raises `ConfigurationError` if the runtime refuses the graph.
    """
    name = f"segment {index} of {bundle.name}"
    return session_of(bundle.graph(index), bundle.weights_of(index), name, threads=threads)


def session_of(
    graph: bytes, weights: Mapping[str, np.ndarray], name: str, *, threads: int = 1
) -> onnxruntime.InferenceSession:
    """A session on the CPU for a graph whose external weights are these arrays, and only these.

    Raises `ConfigurationError` if the runtime refuses the graph.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    quiet_session(options, threads)
    # What fails is raised, in one message.
    options.log_severity_level = 4
    if weights:
        values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    try:
        # There is nothing to fall back to, and falling back would print to standard output.
        session = runtime.InferenceSession(
            graph,
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,
            disabled_optimizers=_DISABLED_OPTIMIZERS,
        )
    except Exception as error:
        # onnxruntime raises its own classes, which share no base but Exception.
        raise ConfigurationError(
            f"onnxruntime {runtime.__version__} cannot load {name}: {first_line(error)}"
        ) from error
    session.disable_fallback()
    # The runtime keeps the addresses of the arrays, but not the arrays: they must live as long as the session.
    weakref.finalize(session, dict.clear, dict(weights)).atexit = False
    return session
