"""Recording what a reservoir is driven with and what it answers, as a trace that can be replayed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.reservoir import Reservoir
from reservoir_hw.store import Dataset, Place, StateStore


class Recorder:
    """Writes every drive of an open reservoir into a new store: data sets "000", "001", ..., one for each reset.

    Use it in a `with` block around the driving. Inputs are recorded as they cross the contract (before a mask and
    before clipping), states as they are returned. What was driven before a fault is kept.

    Raises `ConfigurationError` if there is something at `path` already.
    """

    def __init__(self, reservoir: Reservoir, path: str | Path, *, chunk_steps: int = 4096) -> None:
        self._reservoir = reservoir
        self._chunk_steps = chunk_steps
        spec = reservoir.spec
        facts = {"made_by": "record", "spec": spec.model_dump(mode="json"), "provenance": reservoir.provenance()}
        self.store = StateStore.create(path, facts)
        self._dataset: Dataset | None = None
        self._number = 0
        self._places = 0
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._began = (0.0, 0.0)

    def __enter__(self) -> Recorder:
        self._reservoir.observer = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._reservoir.observer = None
        self._finish()
        status = "complete" if error is None else f"failed: {type(error).__name__}: {error}"
        segment: dict[str, Any] = {"status": status, "places": self._places}
        if self._reservoir.is_open:
            segment["reservoir"] = self._reservoir.provenance()
        self.store.close_segment([segment], complete=True)

    def was_reset(self) -> None:
        """New sequences begin."""
        self._finish()

    def was_driven(self, inputs: np.ndarray, states: np.ndarray, seconds: float) -> None:
        """Inputs (batch, time, inputs) and the states that they gave."""
        if self._dataset is None:
            spec = self._reservoir.spec
            self._dataset = self.store.add(
                f"{self._number:03d}",
                sequences=inputs.shape[0],
                inputs=spec.inputs,
                nodes=spec.nodes,
                chunk_steps=self._chunk_steps,
                dtype=spec.dtype,
            )
            self._number, self._written = self._number + 1, 0
        if not self._waiting:
            self._began = (time.time() - seconds, 0.0)
        self._began = (self._began[0], self._began[1] + seconds)
        # Copies: the caller may use its buffers again.
        self._waiting.append((inputs.copy(), states.copy()))
        if sum(part.shape[1] for part, _ in self._waiting) >= self._chunk_steps:
            self._write(whole=True)

    def _write(self, *, whole: bool) -> None:
        """Write what waits, as whole chunks; the rest only if nothing can follow it."""
        dataset = self._dataset
        if dataset is None or not self._waiting:
            return
        inputs, states = (np.concatenate(parts, axis=1) for parts in zip(*self._waiting, strict=True))
        length = inputs.shape[1] - inputs.shape[1] % self._chunk_steps if whole else inputs.shape[1]
        for start in range(0, length, self._chunk_steps):
            part = slice(start, min(start + self._chunk_steps, length))
            place = Place(slice(0, dataset.sequences), self._written, self._written + part.stop - part.start)
            dataset.write(place, inputs[:, part], states[:, part], timing=self._began)
            self._written = place.stop
            self._places += 1
            self.store.commit(self._places)
        self._waiting = [(inputs[:, length:], states[:, length:])] if length < inputs.shape[1] else []

    def _finish(self) -> None:
        self._write(whole=False)
        self._dataset, self._waiting = None, []
