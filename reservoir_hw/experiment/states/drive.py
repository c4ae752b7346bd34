"""Driving a reservoir: through a plan, by its readout in a closed loop, and while a recorder looks on."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from reservoir_hw.core.arrays import in_precision, to_tensor
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, NotSupported, ShapeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.store import Dataset, Region, StateStore
from reservoir_hw.experiment.states.plan import Burst, DriveChunk, slices
from reservoir_hw.readout.configuration import Readout

OnSteps: TypeAlias = Callable[[int], None]

_FLOAT64 = np.dtype(np.float64)


def driven(
    reservoir: Reservoir,
    bursts: Sequence[Burst],
    on_steps: OnSteps,
    *,
    repetitions: int = 1,
    native: bool = False,
    begun: np.ndarray | None = None,
) -> Iterator[tuple[DriveChunk, Any]]:
    """Every chunk with its states, (batch, time, nodes) of one reservoir, as they come.

    Of several repetitions the mean is given, once all are there: a burst is then held in memory. `native` leaves the
    states of a reservoir that computes with torch where they are: tensors on its device. `begun` are states that the
    plan began with already (`pace.begin`).
    """
    for first in range(0, len(bursts), repetitions):
        sums: list[Any] = []
        for burst in bursts[first : first + repetitions]:
            if begun is None:
                reservoir.reset(burst.batch)
            answers = states_of(reservoir, burst.chunks, native=native, begun=begun)
            begun = None
            for number, (chunk, states) in enumerate(zip(burst.chunks, answers, strict=True)):
                on_steps(chunk.steps)
                if repetitions == 1:
                    yield chunk, states
                elif chunk.repetition == 0:
                    sums.append(np.zeros(0) if chunk.place is None else in_precision(states, _FLOAT64))
                elif chunk.place is not None:
                    sums[number] = sums[number] + states
        for chunk, total in zip(bursts[first].chunks, sums, strict=False):
            yield chunk, mean_of(total, repetitions, reservoir.spec.dtype)


def mean_of(total: Any, repetitions: int, dtype: str) -> Any:
    """The mean states from their sum in float64."""
    return in_precision(total / repetitions, np.dtype(dtype))


def states_of(
    reservoir: Reservoir,
    chunks: Sequence[DriveChunk],
    *,
    native: bool = False,
    begun: np.ndarray | None = None,
) -> Iterator[Any]:
    """The states of consecutive chunks, the reservoir being where the first one starts, or behind what is `begun`.

    `native` as for `driven`.
    """
    inputs = [chunk.inputs for chunk in chunks]
    if begun is not None:
        inputs[0] = inputs[0][:, begun.shape[1] :]
        stream = reservoir.stream(iter(inputs))
        yield np.concatenate([begun, np.asarray(next(stream))], axis=1)
        yield from stream
        return
    if native and reservoir.native == "torch":
        # States come back to where their inputs were.
        dtype, device = reservoir.spec.numpy_dtype, reservoir.device
        yield from reservoir.stream(to_tensor(one, dtype, device, "inputs") for one in inputs)
        return
    if takes_chunks(reservoir):
        yield from reservoir.stream(iter(inputs))
        return
    whole = np.asarray(reservoir.run(np.concatenate(inputs, axis=1)))
    yield from np.split(whole, np.cumsum([one.shape[1] for one in inputs[:-1]]), axis=1)


def takes_chunks(reservoir: Reservoir) -> bool:
    """Whether a device, where it is now, can be fed in chunks; one that cannot takes all of them in one run."""
    try:
        reservoir.stream(iter(()))
    except NotSupported:
        return False
    return True


# ---- Closed loops: a reservoir whose readout's answers are its next inputs.


FAR = 1e3
"""A forecast that is so many times larger than the largest value of its warm-ups has diverged."""

_CHUNK_STEPS = 1024


def forecast(
    reservoir: Reservoir, readout: Readout, warmup: np.ndarray, steps: int, on_steps: OnSteps | None = None
) -> np.ndarray:
    """How the readout says that several series go on: (starts, steps, outputs).

    The reservoir is reset and driven with `warmup` (starts, time, inputs), the true series up to each start. What the
    readout, trained to say u(t + 1) from u(t), answers to its last step is step 0 of the result and the next input,
    and so on; so `time + steps - 1` steps are driven for each start. `on_steps` is told of them as they are done,
    summed over the starts.

    All starts go side by side, or as many at a time as the device takes (`spec.max_batch`).

    An answer that is not finite, or `FAR` times larger than anything in the warm-ups, ends the forecast of its start:
    it and what would follow are NaN in the result. The device is then fed the last true input of that start instead, so
    that the others go on undisturbed.

    Raises
    ------
    NotSupported
        For a free-running device, before anything is driven: it does not wait for an answer.
    ConfigurationError
        If the readout has another number of outputs than the reservoir has inputs.
    InputRangeError
        If an answer leaves the input range of a device that is not configured to clip (`out_of_range: clip`).
    ShapeError
        If `warmup` is not (starts, time, inputs) with at least one step.
    """
    spec = reservoir.spec
    if spec.continuity == "free_running":
        goes_on = "its answers come late" if spec.latency_steps else "between two steps its state goes on"
        raise NotSupported(
            f"{spec.identity.vendor} {spec.identity.model} is free running: {goes_on}, so the readout's answer cannot "
            "be its next input. Forecast on a device that is held or replayed, for instance on its simulated twin."
        )
    warmup = np.asarray(warmup)
    if warmup.ndim != 3 or 0 in warmup.shape:
        raise ShapeError(f"warmup must be (starts, time, inputs), none of them 0, not {warmup.shape}")
    if steps < 1:
        raise ConfigurationError(f"a forecast has at least 1 step, not {steps}")
    size = spec.max_batch or len(warmup)
    tell = on_steps or (lambda done: None)
    groups = [warmup[first : first + size] for first in range(0, len(warmup), size)]
    return np.concatenate([_forecast(reservoir, readout, group, steps, tell) for group in groups])


def warmup_calls(steps: int) -> int:
    """How many calls drive a warm-up of so many steps."""
    return math.ceil(steps / _CHUNK_STEPS)


def _forecast(reservoir: Reservoir, readout: Readout, warmup: np.ndarray, steps: int, tell: OnSteps) -> np.ndarray:
    """The forecast of as many starts as go side by side."""
    starts, time, channels = warmup.shape
    bound = FAR * float(np.abs(warmup).max() or 1.0)
    reservoir.reset(starts)
    states = np.empty(0)
    for first in range(0, time, _CHUNK_STEPS):
        chunk = warmup[:, first : first + _CHUNK_STEPS]
        states = np.array(reservoir.run(chunk)[:, -1])
        tell(starts * chunk.shape[1])
    inputs = last = warmup[:, -1]
    answers = _answers(readout, states, inputs)
    if answers.shape[1] != channels:
        raise ConfigurationError(
            f"in a closed loop the {answers.shape[1]} outputs of the readout are the next inputs, but the reservoir "
            f"takes {channels}: train it to say the next inputs"
        )
    result = np.full((starts, steps, channels), np.nan, answers.dtype)
    alive = np.ones(starts, dtype=bool)
    for step in range(steps):
        if step:
            try:
                states = np.asarray(reservoir.step(inputs))
            except InputRangeError as error:
                # Of a single one nothing is left to forecast; of several nobody knows which it was.
                if starts == 1:
                    return result
                left = f"the forecast left the input range of the device {step} steps after its start"
                raise InputRangeError(f"{left}: {error}") from error
            tell(starts)
            answers = _answers(readout, states, inputs)
        # Written so that NaN does not count as a small number.
        alive &= (np.abs(answers) <= bound).all(axis=1)
        result[alive, step] = answers[alive]
        inputs = np.where(alive[:, None], answers, last).astype(warmup.dtype)
    return result


def _answers(readout: Readout, states: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """(starts, outputs) from states (starts, nodes): as one step of as many sequences."""
    given = inputs[:, None] if readout.input_connection else None
    return np.asarray(readout.predict(states[:, None], given))[:, 0]


# ---- Recording what a reservoir is driven with and what it answers, as a trace that can be replayed.


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
        self._number = self._places = self._written = 0
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
        self._dataset = self.store.add(
            f"{self._number:03d}",
            sequences=sequences,
            inputs=spec.inputs,
            nodes=spec.nodes,
            chunk_steps=min(self._chunk_steps, max(1, _CHUNK_BYTES // (row * sequences))),
            group=min(sequences, max(1, _CHUNK_BYTES // row)),
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
        for rows in slices(dataset.sequences, dataset.group):
            dataset.write(Region(rows, start, stop), inputs[rows], states[rows], timing=(self._began, self._seconds))
            self._places += 1
        self.store.commit(self._places)
        self._written, self._waiting = stop, 0

    def _finish(self) -> None:
        if self._dataset is not None and self._waiting:
            self._write(self._dataset)
        self._dataset = None
