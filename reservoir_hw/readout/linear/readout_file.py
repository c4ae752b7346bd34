"""The file of a linear readout: safetensors with a version, settings and a checksum; no pickle."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import write_safetensors

VERSION = 1


def write_readout(
    path: str | os.PathLike[str], arrays: dict[str, npt.NDArray], facts: dict[str, Any], kind: str = "ridge"
) -> None:
    """Replace the file at `path`."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(facts, sort_keys=True)
    metadata = {
        "format": _format(kind),
        "version": str(VERSION),
        "readout": text,
        "sha256": _checksum(arrays, text),
    }
    write_safetensors(path, save_file, arrays, metadata)


def read_readout(path: str | os.PathLike[str], kind: str = "ridge") -> tuple[dict[str, npt.NDArray], dict[str, Any]]:
    """Arrays and facts of a file; raises ConfigurationError if it is missing, damaged or something else."""
    name = os.fspath(path)
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _format(kind):
                raise ConfigurationError(
                    f"{name} is a safetensors file, but no {kind} readout (format {metadata.get('format')!r}, "
                    f"expected {_format(kind)!r})"
                )
            if metadata.get("version") != str(VERSION):
                raise ConfigurationError(
                    f"{name} has version {metadata.get('version')} of the readout format, this package reads "
                    f"version {VERSION}: use the package that wrote it, or a newer one"
                )
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no readout file {name}") from error
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{name} cannot be read as a readout (safetensors): {error}") from error
    text = metadata.get("readout", "")
    if metadata.get("sha256") != _checksum(arrays, text):
        raise ConfigurationError(f"{name} is damaged: its contents do not match their checksum; copy it again")
    return arrays, json.loads(text)


def _format(kind: str) -> str:
    return f"reservoir_hw.{kind}"


def _checksum(arrays: dict[str, npt.NDArray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
