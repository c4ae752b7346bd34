"""Driving a device for its states alone, so that nothing that was gathered can be lost."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reservoir_hw import provenance
from reservoir_hw.errors import ConfigurationError
from reservoir_hw.experiment.configuration import Point
from reservoir_hw.experiment.drive import OnSteps, mean_of, states_of
from reservoir_hw.experiment.plan import Burst, Leg, plan_of
from reservoir_hw.hostlock import HostLock
from reservoir_hw.reservoir import Reservoir
from reservoir_hw.store import StateStore
from reservoir_hw.tasks.task import Task


def store_path(point: Point, task: Task) -> str:
    """Where the states of this point lie: in `run.states`, under the hash of all that decides about them."""
    config = point.config
    return f"{config.run.states}/{config.reservoir.kind}-{_key(point, task)[:12]}"


def find_states(point: Point, task: Task) -> StateStore | None:
    """The store of a whole or unfinished harvest of this point, or None.

    Raises `ConfigurationError` if it was driven with other inputs than the task has now.
    """
    if point.config.run.states is None or not StateStore.exists(store_path(point, task)):
        return None
    store = StateStore.open(store_path(point, task))
    for name, dataset in store.datasets.items():
        if dataset.facts["inputs_sha256"] != _digest(_split(task, name).inputs):
            raise ConfigurationError(
                f"{store.path}: the task makes other {name} inputs now than when these states were harvested; "
                "remove the store and harvest again, or set run.states=null"
            )
    return store


def open_store(point: Point, task: Task, reservoir: Reservoir) -> StateStore:
    """The point's store, made if it is not there; the device must be the one that began it."""
    path, spec = store_path(point, task), reservoir.spec
    if StateStore.exists(path):
        find_states(point, task)
        store = StateStore.open(path, writable=True)
        began = store.facts["spec"]["identity"]
        if began["fingerprint"] != spec.identity.fingerprint:
            raise ConfigurationError(
                f"{path} was begun on another device ({began['vendor']} {began['model']} {began['serial']}, "
                f"fingerprint {began['fingerprint'][:12]}); this one has {spec.identity.fingerprint[:12]}"
            )
        return store
    facts = {
        "made_by": "harvest",
        "spec": spec.model_dump(mode="json"),
        "chunk_steps": point.config.run.chunk_steps,
        "configuration": _decisive(point, task),
        "provenance": {**provenance.collect(_decisive(point, task)), "reservoir": reservoir.provenance()},
    }
    return StateStore.create(path, facts)


def harvest_plan(point: Point, task: Task, store: StateStore) -> list[Burst]:
    """The plan that a store is filled by: the settings it was begun with, whatever the file says now."""
    facts = store.facts
    return plan_of(point, task, chunk_steps=facts["chunk_steps"], max_batch=facts["spec"]["max_batch"])


def harvest(reservoir: Reservoir, task: Task, bursts: Sequence[Burst], store: StateStore, on_steps: OnSteps) -> None:
    """Fill the store, going on where it ends.

    Only whole chunks count, each with a snapshot where the device has one. A device that can be frozen goes on from
    the snapshot as if nothing had happened; one that declares its memory is driven with the last `memory_steps`
    inputs again; any other, and one that runs freely, starts again with the burst that was cut, whose chunks
    are written anew. The last two leave a seam, which `store.segments` tells.
    """
    lock = HostLock(f"store {os.path.abspath(store.path)}")
    lock.acquire()
    try:
        _harvest(reservoir, task, bursts, store, on_steps)
    finally:
        lock.release()


def stored(
    store: StateStore, bursts: Sequence[Burst], on_steps: OnSteps, *, repetitions: int = 1
) -> Iterator[tuple[Leg, np.ndarray]]:
    """Every leg whose states were kept, with those states or their mean over the repetitions, in bounded memory."""
    datasets = store.datasets
    for burst in bursts[::repetitions]:
        for leg in burst.legs:
            if leg.place is None:
                continue
            states = datasets[leg.split].read(leg.place)[1]
            if repetitions > 1:
                total = states.astype(np.float64)
                for number in range(1, repetitions):
                    total += datasets[replace(leg, repetition=number).dataset].read(leg.place)[1]
                states = mean_of(total, repetitions, str(states.dtype))
            on_steps(leg.steps * repetitions)
            yield leg, states


def device_of(store: StateStore) -> dict[str, Any]:
    """The record of the device that the states came from, and where they lie."""
    return {**store.facts["provenance"]["reservoir"], "states": store.path, "segments": store.segments}


def _harvest(reservoir: Reservoir, task: Task, bursts: Sequence[Burst], store: StateStore, on_steps: OnSteps) -> None:
    store.remove_leftovers()
    kept = [(b, i) for b, burst in enumerate(bursts) for i, leg in enumerate(burst.legs) if leg.place is not None]
    _make_datasets(store, reservoir, task, bursts)
    first, (b, i), seam = _take_up(reservoir, bursts, kept, store)
    on_steps(_steps_before(bursts, b, i))
    segment = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "versions": provenance.versions(),
        "first_place": first,
        "seam": seam,
        "status": "running",
    }
    segments = [*store.segments, segment]
    store.commit(first, snapshot=store.snapshot() if seam is None else None, segments=segments)
    done = first
    try:
        for number in range(b, len(bursts)):
            legs = bursts[number].legs[i:]
            if i == 0:
                reservoir.reset(bursts[number].batch)
            i = 0
            for leg, states, timing in _timed(reservoir, legs):
                if leg.place is not None:
                    store.dataset(leg.dataset).write(leg.place, leg.inputs, states, timing=timing)
                    done += 1
                    snapshot = reservoir.snapshot() if reservoir.spec.snapshot else None
                    store.commit(done, snapshot=snapshot)
                on_steps(leg.steps)
        segment |= {"status": "complete"}
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        segment |= {"status": "interrupted" if stopped else f"failed: {type(error).__name__}: {error}"}
        raise
    finally:
        segment |= {"places": done - first, "reservoir": _read_back(reservoir)}
        store.close_segment(segments, complete=done == len(kept))


def _timed(reservoir: Reservoir, legs: Sequence[Leg]) -> Iterator[tuple[Leg, np.ndarray, tuple[float, float]]]:
    """Legs with their states and when they were driven.

    A device that can be frozen is stopped after each: its snapshot must be of that step.
    """
    if reservoir.spec.snapshot:
        stream: Iterator[Any] = (reservoir.run(leg.inputs) for leg in legs)
    else:
        stream = states_of(reservoir, legs)
    for leg in legs:
        began, started = time.time(), time.perf_counter()
        states = np.asarray(next(stream))
        yield leg, states, (began, time.perf_counter() - started)
    for _ in stream:
        raise AssertionError("more states than legs")


def _take_up(
    reservoir: Reservoir, bursts: Sequence[Burst], kept: Sequence[tuple[int, int]], store: StateStore
) -> tuple[int, tuple[int, int], dict[str, Any] | None]:
    """Bring the device to where the store ends.

    Returns how many places count, the burst and leg to go on with (leg 0: after a reset), and the seam.
    """
    done, spec = store.committed, reservoir.spec
    if done == 0:
        return 0, (0, 0), None
    b, i = kept[done - 1]
    snapshot = store.snapshot() if spec.snapshot else None
    if snapshot is not None:
        reservoir.restore(snapshot)
    if done < len(kept) and kept[done][0] != b:
        # The next one begins with a reset; the snapshot has told the noise where it is.
        return done, (kept[done][0], 0), None
    if snapshot is not None:
        return done, (b, i + 1), None
    at = {"dataset": bursts[b].legs[i].dataset, "place": done}
    if spec.memory_steps and spec.continuity != "free_running":
        reservoir.reset(bursts[b].batch)
        past = np.concatenate([leg.inputs for leg in bursts[b].legs[: i + 1]], axis=1)[:, -spec.memory_steps :]
        reservoir.run(past)
        return done, (b, i + 1), {"kind": "driven again", "steps": past.shape[1], **at}
    begin = next(number for number, (burst, _) in enumerate(kept) if burst == b)
    if begin == done:
        return done, (b, 0), None
    return begin, (b, 0), {"kind": "started again", "steps": 0, **at, "place": begin}


def _make_datasets(store: StateStore, reservoir: Reservoir, task: Task, bursts: Sequence[Burst]) -> None:
    spec = reservoir.spec
    for name in dict.fromkeys(leg.dataset for burst in bursts for leg in burst.legs if leg.place is not None):
        if name in store.datasets:
            continue
        split = _split(task, name)
        places = [leg.place for burst in bursts for leg in burst.legs if leg.place is not None and leg.dataset == name]
        store.add(
            name,
            sequences=split.inputs.shape[0],
            inputs=spec.inputs,
            nodes=spec.nodes,
            steps=split.inputs.shape[1],
            chunk_steps=max(place.stop - place.start for place in places),
            group=max(place.rows.stop - place.rows.start for place in places),
            dtype=spec.dtype,
            facts={"inputs_sha256": _digest(split.inputs)},
        )


def _steps_before(bursts: Sequence[Burst], b: int, i: int) -> int:
    return sum(leg.steps for burst in bursts[:b] for leg in burst.legs) + sum(leg.steps for leg in bursts[b].legs[:i])


def _read_back(reservoir: Reservoir) -> dict[str, Any]:
    try:
        return reservoir.provenance()
    except Exception as error:
        # A dead device cannot be read back; why it died is what counts.
        return {"unknown": f"{type(error).__name__}: {error}"}


def _split(task: Task, name: str) -> Any:
    return task.train if name.partition(".")[0] == "train" else task.test


def _digest(inputs: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(inputs).tobytes()).hexdigest()


def _decisive(point: Point, task: Task) -> dict[str, Any]:
    """What decides about the states: task, reservoir, and how it is driven."""
    config = point.config
    return {
        "task": config.task.model_dump(mode="json"),
        "reservoir": config.reservoir.for_inputs(task.inputs).model_dump(mode="json"),
        "training": config.training.model_dump(mode="json"),
    }


def _key(point: Point, task: Task) -> str:
    return provenance.configuration_hash(_decisive(point, task))
