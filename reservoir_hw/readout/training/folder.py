"""The folder of a training, whose files are all written as a whole or not at all.

FOLDER/
  training.json            options, corpora, devices, versions
  checkpoint.safetensors   everything that the training goes on from
  log.csv                  one row for every `log_steps` steps
  loss.png                 the log as a figure
  best.safetensors         the weights at the best validation loss
  weights.safetensors      the weights in the end
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import read_safetensors, replace_file, write_safetensors
from reservoir_hw.core.locks import owned
from reservoir_hw.core.provenance import plain
from reservoir_hw.readout.training.history import Log, Row, can_draw, draw_losses
from reservoir_hw.readout.training.identity import change_of_constants, constants_of
from reservoir_hw.readout.training.optimizer import put_weights, weights_of

VERSION = 1
WEIGHTS = "reservoir_hw.weights"
# Kept beside the facts. A fact cannot have such a name.
_CONSTANTS = "constants of the model"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], form: str) -> None:
    """Replace the file at `path`."""
    plain = {name: _of_its_own(tensor.detach().cpu()) for name, tensor in tensors.items()}
    text = json.dumps(facts)
    metadata = {"format": form, "version": str(VERSION), "facts": text, "sha256": checksum(plain, text)}
    write_safetensors(path, save_file, plain, metadata)


def read_tensors(path: Path, form: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts; raises `ConfigurationError` if the file is missing, damaged or something else."""
    tensors, metadata = read_safetensors(path, "file of a training", "pt")
    if metadata.get("format") != form or metadata.get("version") != str(VERSION):
        raise ConfigurationError(
            f"{path} is {metadata.get('format')!r} version {metadata.get('version')}, not {form!r} version {VERSION}"
        )
    facts = metadata.get("facts", "")
    if metadata.get("sha256") != checksum(tensors, facts):
        raise ConfigurationError(f"{path} is damaged: its content does not have the SHA-256 that it names")
    return tensors, json.loads(facts)


def checksum(tensors: Mapping[str, Tensor], facts: str = "") -> str:
    """SHA-256 of names, shapes, types and values."""
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        # As bytes: numpy has no bfloat16.
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
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


CHECKPOINT = "reservoir_hw.checkpoint"

log = logging.getLogger(__name__)


class TrainingFolder:
    """See the module. Only one process writes; the others of the same training may read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.weights = self.path / "weights.safetensors"
        self.best = self.path / "best.safetensors"
        self.figure = self.path / "loss.png"
        self.log = Log(self.path / "log.csv")

    @contextmanager
    def owned(self) -> Iterator[None]:
        """While this process alone may write; makes the folder.

        Raises `ConfigurationError` if another one does, or the folder cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be made: {error.strerror or error}") from error
        taken = f"{self.path} belongs to a training that is running"
        with owned(f"training {os.path.realpath(self.path)}", taken):
            # Of a process that died while it wrote.
            for leftover in self.path.glob("*.partial"):
                leftover.unlink()
            yield

    def clear(self) -> None:
        """Remove what an earlier training has left."""
        for path in (self.checkpoint, self.weights, self.best, self.figure, self.path / "log.csv"):
            path.unlink(missing_ok=True)

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """What the training is, for people."""
        replace_file(self.path / "training.json", json.dumps(plain(facts), indent=2) + "\n")

    def write_checkpoint(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Everything that the training goes on from. The log up to here is settled first."""
        self.log.settle()
        write_tensors(self.checkpoint, tensors, facts, CHECKPOINT)

    def read_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The checkpoint, or None where there is none."""
        return read_tensors(self.checkpoint, CHECKPOINT) if self.checkpoint.exists() else None

    def draw(self, rows: list[Row]) -> None:
        """The figure of the losses, where matplotlib is installed."""
        if not can_draw():
            log.warning("no figure of the losses: matplotlib is not installed (pip install 'reservoir-hw[report]')")
        elif rows:
            draw_losses(rows, self.figure)
