"""Which extra of this package installs a module that is missing."""

from __future__ import annotations

from reservoir_hw.core.errors import MissingExtra

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
