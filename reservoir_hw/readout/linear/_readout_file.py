"""The file of a linear readout: safetensors with a version, settings and a checksum; no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from reservoir_hw.core.errors import ConfigurationError

VERSION = 1


def write_readout(
    path: str | os.PathLike[str], arrays: dict[str, npt.NDArray], facts: dict[str, Any], kind: str = "ridge"
) -> None:
    """Write beside the target first, then rename: a reader sees the old file or the new one, never a half."""
    path = Path(path)
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(facts, sort_keys=True)
    metadata = {
        "format": _format(kind),
        "version": str(VERSION),
        "readout": text,
        "sha256": _checksum(arrays, text),
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(save(arrays, metadata=metadata))
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a result that colleagues read follows the umask like any other.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
