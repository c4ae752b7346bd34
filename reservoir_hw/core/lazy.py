"""Names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from reservoir_hw.core.errors import MissingExtra


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package that imports its public names under `if TYPE_CHECKING:`.

        if TYPE_CHECKING:
            from reservoir_hw.readout.linear.ridge import RidgeReadout as RidgeReadout

        __getattr__, __dir__ = lazy_names(__name__)

    Each name is written once, where type checkers and editors look for it. At run time the imports are read from the
    source, so the package cannot be shipped as bytecode alone. `__all__` lists the names.

    A name whose module needs torch raises `MissingExtra` where torch is not installed.
    """

    @cache
    def homes() -> dict[str, str]:
        source = pkgutil.get_data(package, "__init__.py") or b""
        (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module or "" for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes()[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtra(f"{name} needs torch: pip install 'reservoir-hw[train]'") from error

    return find, lambda: sorted({*vars(import_module(package)), *homes()})


# ---- Which extra of this package installs a module that is missing.


_EXTRAS = {
    "sim": ("torch", "numba", "scipy"),
    "zmq": ("zmq", "msgpack", "google_crc32c"),
    "visa": ("pyvisa", "pyvisa_py"),
    "serial": ("serial",),
    "store": ("zarr", "fsspec"),
    "data": ("pooch", "h5py"),
    "tables": ("pandas", "pyarrow", "xarray", "h5netcdf"),
    "report": ("matplotlib", "jinja2"),
    "train": ("lightning", "lightning_fabric", "optuna", "tokenizers"),
    "export": ("onnx", "onnxscript"),
    "edge": ("onnxruntime",),
    "test": ("pytest", "pytest_rerunfailures"),
}


def missing_extra(error: ImportError) -> MissingExtra | None:
    """What to tell for a module that could not be found; None if no extra installs it."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in _EXTRAS.items() if module in modules), None)
    return None if extra is None else MissingExtra(f"this needs {module}: pip install 'reservoir-hw[{extra}]'")
