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

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from reservoir_hw.core.errors import ConfigurationError, DeviceBusy
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.hostlock import HostLock
from reservoir_hw.core.provenance import plain
from reservoir_hw.readout.training.figure import can_draw, draw_losses
from reservoir_hw.readout.training.history import Log, Row
from reservoir_hw.readout.training.weights_file import read_tensors, write_tensors

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
        lock = HostLock(f"training {os.path.realpath(self.path)}")
        try:
            lock.acquire(0)
        except DeviceBusy as busy:
            raise ConfigurationError(f"{self.path} belongs to a training that is running: {busy}") from busy
        try:
            # Of a process that died while it wrote.
            for leftover in self.path.glob("*.partial"):
                leftover.unlink()
            yield
        finally:
            lock.release()

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
