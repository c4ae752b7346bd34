"""Recording what a reservoir is driven with and what it answers, as a trace that can be replayed."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.store import Dataset, Region, StateStore

# Zarr makes every chunk as large as the first, the last ones too, and its codecs take two gigabytes at most.
_CHUNK_BYTES = 64 << 20


def recorded(reservoir: Reservoir, path: str | None, chunk_steps: int) -> contextlib.AbstractContextManager[Any]:
    """While what a reservoir is driven with is recorded at `path`, if there is one."""
    return contextlib.nullcontext() if path is None else Recorder(reservoir, path, chunk_steps=chunk_steps)


class Recorder:
    """Writes every drive of an open reservoir into a new store: data sets "000", "001", ..., one for each reset.

    Use it in a `with` block around the driving. Inputs are recorded as they cross the contract (before a mask and
    before clipping), states as they are returned. What was driven before a fault is kept. One chunk of `chunk_steps`
    steps is held in memory; chunks of many sequences or nodes have fewer steps.

    Raises `ConfigurationError` if there is something at `path` already.
    """

    def __init__(self, reservoir: Reservoir, path: str | Path, *, chunk_steps: int = 4096) -> None:
        self._reservoir = reservoir
        self._observing = contextlib.ExitStack()
        self._chunk_steps = chunk_steps
        spec = reservoir.spec
        facts = {"made_by": "record", "spec": spec.model_dump(mode="json"), "provenance": reservoir.provenance()}
        self.store = StateStore.create(path, facts)
        self._dataset: Dataset | None = None
        self._from_rest = reservoir.at_rest
        self._number = 0
        self._places = 0
        self._written = 0
        # Inputs and states of the chunk that is being filled, (sequences, time, ·), and what of it is full.
        self._chunk = np.empty((0, 0, 0)), np.empty((0, 0, 0))
        self._waiting = 0
        self._began = self._seconds = 0.0

    def __enter__(self) -> Recorder:
        self._observing.enter_context(self._reservoir.observed_by(self))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._observing.close()
        try:
            self._finish()
        except BaseException as failed:
            error = error or failed
            raise
        finally:
            status = "complete" if error is None else f"failed: {type(error).__name__}: {error}"
            segment: dict[str, Any] = {"status": status, "seam": None, "places": self._places}
            # A device that has died cannot say what its settings are; why it died matters more.
            with contextlib.suppress(Exception):
                segment["reservoir"] = self._reservoir.provenance()
            self.store.close_segment([segment], complete=True)

    def was_reset(self, *, from_rest: bool) -> None:
        """New sequences begin: at rest, or where a restored snapshot was taken."""
        self._finish()
        self._from_rest = from_rest

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """Inputs (batch, time, inputs) and the states that they gave.

        Where nobody saw the states, what follows is a sequence of its own that does not begin at rest.
        """
        if states is None:
            self.was_reset(from_rest=False)
            return
        steps = inputs.shape[1]
        if not steps:
            return
        dataset = self._dataset or self._begin(len(inputs))
        # The steps of a drive share its time.
        share, began = seconds / steps, time.time() - seconds
        done = 0
        while done < steps:
            if not self._waiting:
                self._began, self._seconds = began + share * done, 0.0
            count = min(steps - done, dataset.chunk_steps - self._waiting)
            # Copied: the caller may use its buffers again.
            for chunk, given in zip(self._chunk, (inputs, states), strict=True):
                chunk[:, self._waiting : self._waiting + count] = given[:, done : done + count]
            self._waiting += count
            self._seconds += share * count
            done += count
            if self._waiting == dataset.chunk_steps:
                self._write(dataset)

    def _begin(self, sequences: int) -> Dataset:
        spec = self._reservoir.spec
        row = (spec.inputs + spec.nodes) * np.dtype(spec.dtype).itemsize
        group = min(sequences, max(1, _CHUNK_BYTES // row))
        self._dataset = self.store.add(
            f"{self._number:03d}",
            sequences=sequences,
            inputs=spec.inputs,
            nodes=spec.nodes,
            chunk_steps=min(self._chunk_steps, max(1, _CHUNK_BYTES // (row * sequences))),
            group=group,
            dtype=spec.dtype,
            facts={"from_rest": self._from_rest},
        )
        shape = sequences, self._dataset.chunk_steps
        self._chunk = np.empty((*shape, spec.inputs), spec.dtype), np.empty((*shape, spec.nodes), spec.dtype)
        self._number, self._written = self._number + 1, 0
        return self._dataset

    def _write(self, dataset: Dataset) -> None:
        """Write what waits, and count it."""
        start, stop = self._written, self._written + self._waiting
        inputs, states = (chunk[:, : self._waiting] for chunk in self._chunk)
        for first in range(0, dataset.sequences, dataset.group):
            rows = slice(first, min(first + dataset.group, dataset.sequences))
            dataset.write(Region(rows, start, stop), inputs[rows], states[rows], timing=(self._began, self._seconds))
            self._places += 1
        self.store.commit(self._places)
        self._written, self._waiting = stop, 0

    def _finish(self) -> None:
        if self._dataset is not None and self._waiting:
            self._write(self._dataset)
        self._dataset = None
