"""The weights of all graphs of a model, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError

_ONNX_NAMES = {"float32": "F32", "float64": "F64", "int8": "I8", "int32": "I32", "int64": "I64"}

# Where a tensor may begin, so that a mapped file can be read by vector instructions.
ALIGNMENT = 64


@dataclass
class Weights:
    """Named arrays and their places in one safetensors file.

    What is added twice under the same name must be the same array: a tied weight is stored once.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, array: np.ndarray) -> str:
        """Keep an array; returns its name. Raises `ConfigurationError` for numbers that are not finite."""
        array = np.ascontiguousarray(array)
        check_finite(name, array)
        known = self.arrays.get(name)
        if known is not None and not (known.dtype == array.dtype and np.array_equal(known, array)):
            raise ConfigurationError(f"two different weights are both called {name}")
        self.arrays[name] = array
        return name

    def places(self) -> dict[str, tuple[int, int]]:
        """Offset in the file and length in bytes of each array."""
        start = len(self.header())
        found = {}
        for name in self._order():
            length = self.arrays[name].nbytes
            found[name] = (start, length)
            start += length
        return found

    def header(self) -> bytes:
        """The beginning of the file: the length of the description, and the description."""
        described: dict[str, Any] = {"__metadata__": {"format": "reservoir_hw.graphs"}}
        begin = 0
        for name in self._order():
            array = self.arrays[name]
            end = begin + array.nbytes
            described[name] = {
                "dtype": _ONNX_NAMES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [begin, end],
            }
            begin = end
        text = json.dumps(described, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    def parts(self) -> Iterator[bytes | memoryview]:
        """The file, piece by piece."""
        yield self.header()
        for name in self._order():
            yield self.arrays[name].reshape(-1).view(np.uint8).data

    def _order(self) -> list[str]:
        # The widest numbers first: then each array begins at a multiple of the size of its numbers.
        return sorted(self.arrays, key=lambda name: -self.arrays[name].itemsize)


def check_finite(name: str, array: np.ndarray) -> None:
    """Raise `ConfigurationError` for NaN and infinity."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigurationError(f"weight {name} is not finite: the model has diverged, or its file is broken")
