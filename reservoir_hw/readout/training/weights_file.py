"""Files of named tensors and facts: safetensors, written as a whole or not at all; no pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import write_safetensors
from reservoir_hw.readout.training.identity import change_of_constants, constants_of
from reservoir_hw.readout.training.objective import put_weights, weights_of

VERSION = 1
WEIGHTS = "reservoir_hw.weights"
# Kept beside the facts. A fact cannot have such a name.
_CONSTANTS = "constants of the model"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], form: str) -> None:
    """Replace the file at `path`."""
    plain = {name: _of_its_own(tensor.detach().cpu()) for name, tensor in tensors.items()}
    text = json.dumps(facts)
    metadata = {"format": form, "version": str(VERSION), "facts": text, "sha256": _checksum(plain, text)}
    write_safetensors(path, save_file, plain, metadata)


def read_tensors(path: Path, form: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts; raises `ConfigurationError` if the file is missing, damaged or something else."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != form or metadata.get("version") != str(VERSION):
                raise ConfigurationError(
                    f"{path} is {metadata.get('format')!r} version {metadata.get('version')}, not {form!r} version "
                    f"{VERSION}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            if metadata.get("sha256") != _checksum(tensors, metadata["facts"]):
                raise ConfigurationError(f"{path} is damaged: its content does not have the SHA-256 that it names")
            return tensors, json.loads(metadata["facts"])
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no file {path}") from error
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{path} cannot be read (safetensors): {error}; is it damaged?") from error


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        # As bytes: numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _of_its_own(tensor: Tensor) -> Tensor:
    """A contiguous copy that is not part of a larger tensor, because the format refuses shared memory."""
    tensor = tensor.contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def save_weights(module: nn.Module, path: str | os.PathLike[str], **facts: Any) -> None:
    """Write all weights and buffers of a module, and its constants; `facts` are kept with them."""
    write_tensors(Path(path), weights_of(module), {**facts, _CONSTANTS: constants_of(module)}, WEIGHTS)


def load_weights(module: nn.Module, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Put the weights of a file into a module; returns the facts that were saved with them.

    Raises `ConfigurationError` if the file cannot be read, or is of another model, naming the first difference: in
    names and shapes, and in what no weight tells, such as the scale of an input map or a leak rate.
    """
    tensors, facts = read_tensors(Path(path), WEIGHTS)
    constants = facts.pop(_CONSTANTS, None)
    difference = None if constants is None else change_of_constants(constants, constants_of(module))
    if difference is not None:
        raise ConfigurationError(f"{path} is of another model: {difference}")
    put_weights(module, tensors, str(path))
    return facts
