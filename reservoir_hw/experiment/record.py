"""Recording what a reservoir is driven with and what it answers, as a trace that can be replayed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.errors import ConfigurationError
from reservoir_hw.reservoir import Reservoir
from reservoir_hw.store import Dataset, Place, StateStore


class Recorder:
    """Writes every drive of an open reservoir into a new store: data sets "000", "001", ..., one for each reset.

    Use it in a `with` block around the driving. Inputs are recorded as they cross the contract (before a mask and
    before clipping), states as they are returned. What was driven before a fault is kept.

    Raises `ConfigurationError` if there is something at `path` already, or another recorder at work.
    """

    def __init__(self, reservoir: Reservoir, path: str | Path, *, chunk_steps: int = 4096) -> None:
        self._reservoir = reservoir
        self._chunk_steps = chunk_steps
        spec = reservoir.spec
        facts = {"made_by": "record", "spec": spec.model_dump(mode="json"), "provenance": reservoir.provenance()}
        self.store = StateStore.create(path, facts)
        self._dataset: Dataset | None = None
        self._from_rest = reservoir.at_rest
        self._number = 0
        self._places = 0
        self._written = 0
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting_steps = 0
        self._began: float | None = None
        self._seconds = 0.0

    def __enter__(self) -> Recorder:
        if self._reservoir.observer is not None:
            raise ConfigurationError("this reservoir is being recorded already: end that recording first")
        self._reservoir.observer = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._reservoir.observer = None
        self._finish()
        status = "complete" if error is None else f"failed: {type(error).__name__}: {error}"
        segment: dict[str, Any] = {"status": status, "seam": None, "places": self._places}
        if self._reservoir.is_open:
            segment["reservoir"] = self._reservoir.provenance()
        self.store.close_segment([segment], complete=True)

    def was_reset(self, *, from_rest: bool) -> None:
        """New sequences begin: at rest, or where a restored snapshot was taken."""
        self._finish()
        self._from_rest = from_rest

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
                facts={"from_rest": self._from_rest},
            )
            self._number, self._written = self._number + 1, 0
        if self._began is None:
            self._began = time.time() - seconds
        self._seconds += seconds
        # Copies: the caller may use its buffers again.
        self._waiting.append((inputs.copy(), states.copy()))
        self._waiting_steps += inputs.shape[1]
        if self._waiting_steps >= self._chunk_steps:
            self._write(self._waiting_steps - self._waiting_steps % self._chunk_steps)

    def _write(self, length: int) -> None:
        """Write the first `length` steps of what waits, in chunks; they share what was measured of their time."""
        assert self._dataset is not None
        inputs, states = (np.concatenate(parts, axis=1) for parts in zip(*self._waiting, strict=True))
        began, share = self._began or 0.0, self._seconds / self._waiting_steps
        for start in range(0, length, self._chunk_steps):
            part = slice(start, min(start + self._chunk_steps, length))
            steps = part.stop - part.start
            place = Place(slice(0, self._dataset.sequences), self._written, self._written + steps)
            timing = (began + share * start, share * steps)
            self._dataset.write(place, inputs[:, part], states[:, part], timing=timing)
            self._written = place.stop
            self._places += 1
            self.store.commit(self._places)
        left = inputs.shape[1] - length
        self._waiting = [(inputs[:, length:], states[:, length:])] if left else []
        self._waiting_steps, self._seconds = left, share * left
        self._began = began + share * length if left else None

    def _finish(self) -> None:
        if self._waiting_steps:
            self._write(self._waiting_steps)
        self._dataset = None
