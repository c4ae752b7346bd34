"""Driving a device for its states alone, so that nothing that was gathered can be lost."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.knobs import about_monitors
from reservoir_hw.core.locks import owned
from reservoir_hw.core.provenance import plain
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import Region, StateStore, is_damage, plain_path
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.configuration.identity import contents, deciding_states
from reservoir_hw.experiment.states.drive import OnSteps, mean_of, states_of, takes_chunks
from reservoir_hw.experiment.states.pace import begin
from reservoir_hw.experiment.states.plan import Burst, DriveChunk, SplitName, kept, plan_of
from reservoir_hw.experiment.states.resuming import (
    between_calibrations,
    changes_since,
    closed_in_between,
    erase_rest,
    in_words,
    take_up,
    what_is_safe,
)
from reservoir_hw.experiment.states.watch import StateWatch, counted
from reservoir_hw.tasks.task import Task

log = logging.getLogger(__name__)


def store_path(point: Point, task: Task) -> str:
    """Where the states of this point lie: in `run.states`, under the hash of all that decides about them."""
    config = point.config
    decides = deciding_states(
        config.task, config.reservoir.for_inputs(task.channels), config.training, task.inputs_digest
    )
    path = f"{config.run.states}/{config.reservoir.kind}-{provenance.configuration_hash(decides)[:12]}"
    return f"{path}-draw{point.draw}" if point.draw else path


def find_states(point: Point, task: Task) -> StateStore | None:
    """The store of a whole or unfinished harvest of this point, or None.

    Raises `ConfigurationError` if it is damaged, or was driven with other inputs than the task has now.
    """
    path = store_path(point, task)
    if point.config.run.states is None or not StateStore.exists(path):
        return None
    with _saying_what_to_do(lambda: f"restore {path} from a copy, or remove it"):
        return _checked(StateStore.open(path), point, task)


@contextlib.contextmanager
def _saying_what_to_do(ways_out: Callable[[], str]) -> Iterator[None]:
    """Reading states for a run: an error about damage says what the user can do, `ways_out` among it."""
    try:
        yield
    except ConfigurationError as error:
        if not is_damage(error):
            raise
        raise ConfigurationError(f"{error}; {ways_out()} and harvest again, or set run.states=null") from error


def harvest_lock(point: Point, task: Task) -> contextlib.AbstractContextManager[None]:
    """While this process alone may fill the point's store."""
    path = plain_path(store_path(point, task))
    real = path if "://" in path else os.path.realpath(path)
    return owned(f"store {real}", f"{path} is being filled by another harvest")


def open_store(point: Point, task: Task, reservoir: Reservoir) -> tuple[StateStore, np.ndarray | None]:
    """The point's store, made if it is not there. The chunks of a new one follow the pace of the device.

    With the states of the steps that were driven to find out its pace (`pace.begin`).
    """
    path, spec = store_path(point, task), reservoir.spec
    if StateStore.exists(path):
        return _checked(StateStore.open(path, writable=True), point, task), None
    config = point.config
    configuration = {
        "task": config.task.model_dump(mode="json"),
        "reservoir": config.reservoir.for_inputs(task.channels).model_dump(mode="json", serialize_as_any=True),
        "training": config.training.model_dump(mode="json", exclude={"gradient"}),
    }
    configuration["files"] = dict(contents(configuration))
    steps, begun = begin(reservoir, plan_of(point, task, max_batch=spec.max_batch), config.run.chunk_steps)
    facts = {
        "made_by": "harvest",
        "spec": spec.model_dump(mode="json"),
        "chunk_steps": steps,
        "configuration": configuration,
        "provenance": {**provenance.collect(configuration), "reservoir": reservoir.provenance()},
    }
    plan = plan_of(point, task, chunk_steps=steps, max_batch=spec.max_batch)
    return StateStore.create(path, facts, layout(plan, spec, task)), begun


def harvest_plan(point: Point, task: Task, store: StateStore) -> list[Burst]:
    """The plan by which a store is filled. It has the settings with which the store was begun."""
    facts = store.facts
    return plan_of(point, task, chunk_steps=facts["chunk_steps"], max_batch=facts["spec"]["max_batch"])


def layout(bursts: Sequence[Burst], spec: ReservoirSpec, task: Task) -> dict[str, dict[str, Any]]:
    """The data sets that keep the states of a plan, as `StateStore.create` takes them."""
    digests = {"train": _digest(task.train.inputs), "test": _digest(task.test.inputs)}
    # Something is driven between the reset and the first step that is kept.
    late = {one.dataset for burst in bursts for one in burst.chunks[1:] if one.place and one.place.start == 0}
    places: dict[tuple[str, SplitName], list[Region]] = {}
    for chunk in kept(bursts):
        places.setdefault((chunk.dataset, chunk.split), []).append(cast(Region, chunk.place))
    datasets: dict[str, dict[str, Any]] = {}
    for (name, split), regions in places.items():
        sequences, steps = (task.train if split == "train" else task.test).inputs.shape[:2]
        datasets[name] = {
            "sequences": sequences,
            "inputs": spec.inputs,
            "nodes": spec.nodes,
            "steps": steps,
            "chunk_steps": max(place.stop - place.start for place in regions),
            "group": max(place.rows.stop - place.rows.start for place in regions),
            "dtype": spec.dtype,
            "facts": {"inputs_sha256": digests[split], "from_rest": name not in late},
        }
    return datasets


def check(store: StateStore, bursts: Sequence[Burst], say: Callable[[str], None]) -> None:
    """Read all that counts once, and change nothing.

    Raises `ConfigurationError`, which names the file and says what to do, where something cannot be read.
    """
    datasets = store.datasets
    said = time.monotonic()
    for number, chunk in enumerate(kept(bursts)[: store.committed], 1):
        if time.monotonic() - said >= 1:
            said = time.monotonic()
            say(f"checking {store.path}: chunk {number} of {store.committed}")
        place, dataset, array = cast(Region, chunk.place), datasets[chunk.dataset], "states"
        try:
            dataset.read_states(place)
            array = "inputs"
            dataset.read_inputs(place.rows, place.start, place.stop)
        except ConfigurationError as error:
            what, file = str(error), dataset.file_of(place, array)
            if not is_damage(error):
                # From its cause, by which it can be told from damage.
                raise ConfigurationError(f"{what}; the file is {file}; nothing was changed") from error.__cause__
            if error.__cause__ is None:
                what = (
                    f"{store.path}: {array} of {chunk.dataset}, steps {place.start} to {place.stop - 1} of sequence "
                    f"{place.rows.start}, were harvested, and are not there any more"
                )
            raise ConfigurationError(
                f"{what}; nothing was changed: restore {file} from a copy, or remove {store.path} and harvest again"
            ) from error


def harvest(
    reservoir: Reservoir,
    bursts: Sequence[Burst],
    store: StateStore,
    on_steps: OnSteps,
    *,
    accept_change: str | None = None,
    begun: np.ndarray | None = None,
) -> None:
    """Fill the store, going on where it ends.

    Only whole chunks count, each with a snapshot where the device has one. A device that can be frozen goes on from
    the snapshot as if nothing had happened; one that declares its memory is driven with the last `memory_steps`
    inputs again; any other starts again with the burst that was cut, whose chunks are written anew. The last two leave
    a seam, which `store.segments` tells, and so do hardware that was closed in between, another calibration, and a
    device that reports other settings. Those are refused without `accept_change`, a reason. What counts is not read:
    see `check`.

    `begun` are the states of first steps that were driven already. What casts doubt on the states that this harvest
    added is logged.
    """
    changes = changes_since(store, reservoir, accept_change)
    store.remove_leftovers()
    places = [(b, i) for b, burst in enumerate(bursts) for i, one in enumerate(burst.chunks) if one.place is not None]
    done, (b, i), past, seam = take_up(reservoir, bursts, places, store, same_device=not changes)
    calibrations, told = list(_named(_record(reservoir))), seam
    if seam is None and 0 < done < len(places):
        opened_again = closed_in_between(reservoir.spec, bursts, places, done, i)
        told = between_calibrations(store.segments[-1], calibrations) or opened_again
    if changes:
        told = {**(told or {"kind": "changed settings"}), "changes": changes, "reason": accept_change}
    segment: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "versions": provenance.versions(),
        "first_place": done,
        "calibrations": calibrations,
        "identity": reservoir.spec.identity.model_dump(),
        "read_back": plain(reservoir.read_back()),
        "status": "running",
        "seam": told,
    }
    segments = [*store.segments, segment]

    def close(status: str) -> None:
        segment.update(status=status, places=done - segment["first_place"], reservoir=_record(reservoir))
        store.close_segment(segments, complete=done == len(places))

    # The snapshot of another device is no use to this one.
    store.commit(done, snapshot=None if done == 0 or seam or changes else store.snapshot(), segments=segments)
    datasets, watch = store.datasets, StateWatch(reservoir.spec)
    try:
        if store.segments[:-1]:
            erase_rest(bursts, places[done:], datasets)
        for number in range(b, len(bursts)):
            chunks = [*past, *bursts[number].chunks[i:]]
            if begun is None and (i == 0 or past):
                reservoir.reset(bursts[number].batch)
            i, past = 0, []
            timed, begun = _timed(reservoir, chunks, begun), None
            for chunk, states, timing in timed:
                if chunk.place is not None:
                    datasets[chunk.dataset].write(chunk.place, chunk.inputs, states, timing=timing)
                    store.commit(done + 1, snapshot=reservoir.snapshot() if reservoir.spec.snapshot else None)
                    done += 1
                    watch.look(chunk, states)
                on_steps(chunk.steps)
    except BaseException as error:
        error.add_note(what_is_safe(reservoir.spec, places, done, store.path))
        stopped = isinstance(error, KeyboardInterrupt)
        try:
            close("interrupted" if stopped else f"failed: {type(error).__name__}: {error}")
        except Exception as another:
            # Why the harvest ended is what counts.
            log.warning("how this harvest ended could not be noted: %s", another)
        raise
    close("complete")
    for warning in [*watch.warnings(), *about_monitors(reservoir.monitored())]:
        log.warning("%s: %s", reservoir.name, warning)


def stored(
    store: StateStore, bursts: Sequence[Burst], on_steps: OnSteps, *, repetitions: int = 1
) -> Iterator[tuple[DriveChunk, np.ndarray]]:
    """Every chunk whose states were kept, with those states or their mean over the repetitions, in bounded memory."""
    datasets = store.datasets

    def read(chunk: DriveChunk) -> np.ndarray:
        place, dataset = cast(Region, chunk.place), datasets[chunk.dataset]
        with _saying_what_to_do(
            lambda: f"restore {dataset.file_of(place, 'states')} from a copy, or remove {store.path}"
        ):
            return dataset.read_states(place)

    for chunk in kept(bursts[::repetitions]):
        states = read(replace(chunk, repetition=0))
        if repetitions > 1:
            total = states.astype(np.float64)
            for number in range(1, repetitions):
                total += read(replace(chunk, repetition=number))
            states = mean_of(total, repetitions, str(states.dtype))
        on_steps(chunk.steps * repetitions)
        yield chunk, states


def device_of(store: StateStore) -> dict[str, Any]:
    """The record of the device that the states came from, with what all processes counted, and where they lie."""
    counters = counted(segment.get("reservoir", {}) for segment in store.segments).as_dict()
    record = store.facts["provenance"]["reservoir"]
    return {**record, "counters": counters, "states": store.path, "segments": store.segments}


def _timed(
    reservoir: Reservoir, chunks: Sequence[DriveChunk], begun: np.ndarray | None
) -> Iterator[tuple[DriveChunk, np.ndarray, tuple[float, float]]]:
    """Chunks with their states and when they were driven.

    A device that can be frozen is stopped after each: its snapshot must be of that step. The steps of a device that
    takes all chunks in one run share its time.
    """
    if not takes_chunks(reservoir):
        began, started = time.time(), time.perf_counter()
        answers = list(states_of(reservoir, chunks))
        share = (time.perf_counter() - started) / sum(chunk.steps for chunk in chunks)
        for chunk, states in zip(chunks, answers, strict=True):
            yield chunk, states, (began, share * chunk.steps)
            began += share * chunk.steps
        return
    one_by_one = (reservoir.run(chunk.inputs) for chunk in chunks)
    stream = one_by_one if reservoir.spec.snapshot else states_of(reservoir, chunks, begun=begun)
    for chunk in chunks:
        began, started = time.time(), time.perf_counter()
        states = np.asarray(next(stream))
        yield chunk, states, (began, time.perf_counter() - started)
    for _ in stream:
        raise AssertionError("more states than chunks")


def _record(reservoir: Reservoir) -> dict[str, Any]:
    try:
        return reservoir.provenance()
    except Exception as error:
        # A dead device cannot be read back; why it died is what counts.
        return {"unknown": f"{type(error).__name__}: {error}"}


def _checked(store: StateStore, point: Point, task: Task) -> StateStore:
    """The store, if it is one of this point as far as can be told without reading its states."""
    try:
        spec = ReservoirSpec(**store.facts["spec"])
        bursts = harvest_plan(point, task, store)
        expected = layout(bursts, spec, task)
    except ConfigurationError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{store.path} is damaged: its zarr.json describes no harvest") from error
    datasets = store.datasets
    for name, described in expected.items():
        dataset = datasets.get(name) or store.dataset(name)
        if dataset.facts.get("inputs_sha256") != described["facts"]["inputs_sha256"]:
            raise ConfigurationError(
                f"{store.path}: the task makes other {name} inputs now than when these states were harvested"
            )
        for array, width in ((dataset.inputs, "inputs"), (dataset.states, "nodes")):
            shape = tuple(described[key] for key in ("sequences", "steps", width))
            chunks = tuple(described[key] for key in ("group", "chunk_steps", width))
            if array.shape != shape or array.chunks != chunks:
                raise ConfigurationError(
                    f"{store.path} is damaged: {array.basename} of {name} are {array.shape} in chunks of "
                    f"{array.chunks}, not {shape} in chunks of {chunks}"
                )
    places = len(kept(bursts))
    if store.committed > places or (store.complete and store.committed < places):
        raise ConfigurationError(
            f"{store.path} is damaged: its journal counts {store.committed} chunks of {places}, "
            f"and says {'that is all' if store.complete else 'that there are more'}"
        )
    return store


def _digest(inputs: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(inputs).data).hexdigest()


def about_changes(store: StateStore) -> list[str]:
    """A sentence for each change of the device that was accepted while the states were harvested."""
    return [
        f"{store.path} holds states from before and after a change of the device: {in_words(seam['changes'])} "
        f"(accepted: {seam['reason']})"
        for seam in (segment["seam"] for segment in store.segments)
        if seam and "changes" in seam
    ]


def about_calibration(store: StateStore, reservoir: ReservoirConfig) -> str:
    """A sentence about a store that was begun with another calibration than the configuration names, or nothing."""
    configurations = store.facts["configuration"]["reservoir"], reservoir.model_dump(mode="json", serialize_as_any=True)
    began, now = (", ".join(name or "none" for name in _named(one)) for one in configurations)
    if began == now:
        return ""
    return f"{store.path} was begun with the calibration {began}, and this configuration names {now}"


def _named(configuration: Any) -> Iterator[str]:
    """The calibrations of all devices."""
    if isinstance(configuration, dict):
        for key, value in configuration.items():
            if key == "calibration_id":
                yield value
            else:
                yield from _named(value)
    elif isinstance(configuration, list):
        for value in configuration:
            yield from _named(value)
