"""Readouts that learn in one pass over states, which a device gives now or gave to a harvest."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from reservoir_hw.backends.replay import Replay, ReplayConfig
from reservoir_hw.backends.simulated.memory import free_bytes
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig
from reservoir_hw.core.errors import ConfigurationError, DeviceError, InputRangeError
from reservoir_hw.core.knobs import about_monitors
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.learning import Prepare, gathers, state_readout, trained
from reservoir_hw.experiment.run.open_device import OpenDevice, refuse_draws
from reservoir_hw.experiment.run.result import write_array
from reservoir_hw.experiment.run.text_training import check_gradient, gradient_of, refuse_options_of_texts
from reservoir_hw.experiment.run.trainer import (
    Cost,
    PointRun,
    RowFiles,
    Trainer,
    device_memory,
    fitting_steps,
)
from reservoir_hw.experiment.states.drive import driven, forecast, recorded
from reservoir_hw.experiment.states.harvest import (
    about_calibration,
    about_changes,
    check,
    device_of,
    find_states,
    harvest,
    harvest_lock,
    harvest_plan,
    open_store,
    store_path,
    stored,
)
from reservoir_hw.experiment.states.pace import (
    about_progress,
    begin,
    driven_by,
    driven_on,
    planned,
    steps_driven,
)
from reservoir_hw.experiment.states.plan import Burst, DriveChunk, goes_on, kept, plan_of
from reservoir_hw.experiment.states.progress import StepCounter, following
from reservoir_hw.experiment.states.resuming import about_interruptions, changes_since, in_words
from reservoir_hw.experiment.states.watch import StateWatch, about_counters, counted
from reservoir_hw.readout.configuration import GradientReadoutConfig, Readout
from reservoir_hw.readout.own.configuration import TorchConfig
from reservoir_hw.tasks.task import Task

log = logging.getLogger(__name__)


class InOnePass(Trainer):
    """Drives the plan of a point, or reads its harvest, and hands the states to the readout as they come."""

    shares = False

    def check(self, section: str, config: ExperimentConfig, task: Task) -> None:
        """The number of inputs, what the readout says of the task, and no settings of gradients."""
        readout = state_readout(config)
        if section == "reservoir":
            if task.closed_loop and config.reservoir.declared_continuity == "free_running":
                late = getattr(config.reservoir, "latency_steps", 0)
                why = f"whose answers are {late} steps late" if late else "that runs freely"
                raise ConfigurationError(f"a closed loop waits for each answer, and a device {why} does not")
            reservoir = config.reservoir.for_inputs(readout.channels(task))
            _check_register(reservoir, config, task)
            if task.series is not None:
                _check_range(reservoir, task)
        elif section == "readout":
            readout.check_task(task)
            nodes = getattr(config.reservoir.for_inputs(readout.channels(task)), "nodes", None)
            if nodes is not None:
                readout.check_features(nodes, task)
        elif section == "run" and config.run.draws > 1:
            refuse_draws(config.reservoir)
        elif section == "training" and isinstance(readout, GradientReadoutConfig):
            gradient = check_gradient(config, "gradient: {epochs: 50, context: 64}")
            refuse_options_of_texts(config, "states that are held in memory")
            cast(TorchConfig, readout).check_options(gradient.options)
        elif section == "training" and config.training.gradient is not None and not config.trains_baselines:
            raise ConfigurationError(
                f"gradient: readout {readout.kind} is not trained by gradients; remove it, or take one of the "
                "readouts linear, low_rank, attention and laerc for texts, gates and gru for sequences with labels, "
                "torch for a module of your own, or a baseline that is"
            )

    def drive_of(self, point: Point, task: Task) -> str | None:
        """What decides about the states. A forecast drives the device itself, and a recording is of one point."""
        return None if task.closed_loop or point.config.run.record else store_path(point, task)

    def metrics(self, config: ExperimentConfig, task: Task) -> list[str]:
        """Those of the task."""
        return list(task.evaluate(np.nan_to_num(task.test.targets)).metrics)

    def cost(self, point: Point, task: Task, *, harvest: bool = False) -> Cost:
        """From the plan. Of a harvest only states that are kept count as bytes, and no forecast is made."""
        reservoir = point.config.reservoir
        if not harvest and (store := _harvest_of(point, task)) and store.complete:
            of = driven_by(reservoir)
            forecast = of.forecasts(task) + of.opening if task.closed_loop else 0
            read = sum(chunk.steps for chunk in kept(harvest_plan(point, task, store)))
            return Cost(forecast, read + forecast, 0, stored=True)
        plan = planned(point, task)
        chunks = [chunk for burst in plan for chunk in burst.chunks]
        bursts = sum(reservoir.bursts(chunk.steps, continued=at > 0) for b in plan for at, chunk in enumerate(b.chunks))
        steps = driven_by(reservoir).opening + steps_driven(point, task, forecasts=not harvest)
        nodes = getattr(reservoir.for_inputs(task.channels), "nodes", None)
        states = sum(chunk.steps for chunk in (kept(plan) if harvest else chunks))
        if task.closed_loop and not harvest:
            starts, warmup = task.test.inputs.shape[:2]
            states += starts * (warmup + task.test.targets.shape[1] - 1)
        width = 8 if getattr(reservoir, "dtype", "float32") == "float64" else 4
        on_device = None
        if isinstance(reservoir, SimulatedConfig) and getattr(reservoir, "device", "cpu") != "cpu":
            on_device = device_memory(reservoir.for_inputs(task.channels), plan, task.outputs)
        state_bytes = None if nodes is None else states * nodes * width
        updates = 0
        if isinstance(point.config.readout, TorchConfig) and not harvest:
            options = gradient_of(point.config).options
            updates = options.steps_for(point.config.readout.windows(task, options.context))
        return Cost(steps, steps, state_bytes, len(chunks), training_steps=updates, bursts=bursts, on_device=on_device)

    def run(self, run: PointRun) -> None:
        """Take the states of a harvest if it is whole; else, and for a forecast, open the device."""
        point, task = run.point, run.task
        if point.number in run.found:
            run.found.pop(point.number)(run)
            return
        drive = [point, *run.others]
        store = _harvested(run)
        if store is not None and not task.closed_loop:
            run.say(f"training and testing on {store.path}")
            spec = ReservoirSpec(**store.facts["spec"])
            watch = StateWatch(spec)
            found = trained(drive, task, watch.passing(_stored(run, store)), _preparing(run, spec.nodes))
            records = [segment.get("reservoir", {}) for segment in store.segments]
            warnings = about_counters(counted(records), spec) + watch.warnings()
            warnings += [about for record in records for about in about_monitors(record.get("monitors", {}))]
            _keep_all(run, found, device_of(store), warnings)
            return
        run.say("opening")
        with run.device.of(point, task) as reservoir:
            with run.on([reservoir]), recorded(reservoir, run.files.record, point.config.run.chunk_steps):
                on_steps = following(reservoir, run.counter.add)
                whole = 0
                bursts, begun = ([], None) if store is not None else _paced(run, reservoir)
                run.say("training and testing")
                if store is not None:
                    if changes := changes_since(store, reservoir, run.accept_change):
                        run.result.warn(
                            f"the forecast is by a device that has changed since its harvest: {in_words(changes)} "
                            f"(accepted: {run.accept_change})"
                        )
                    states = _stored(run, store)
                else:
                    repetitions = point.config.training.repetitions
                    # Of a device that says how it is driven only now the estimate was another one.
                    of = driven_on(reservoir)
                    whole = run.device.opening_steps + of.bursts(bursts) + of.forecasts(task)
                    estimated = self.cost(point, task).progress_steps
                    if run.device.was_open:
                        estimated -= driven_by(point.config.reservoir).opening
                    run.counter.total += whole - estimated
                    states = driven(reservoir, bursts, on_steps, repetitions=repetitions, native=True, begun=begun)
                watch = StateWatch(reservoir.spec)
                found = trained(drive, task, watch.passing(states), _preparing(run, reservoir.spec.nodes))
                if task.closed_loop:
                    run.say("forecasting")
                    horizon = task.test.targets.shape[1]
                    readout = found[0][0]
                    if gathers(readout) and readout.mixes_positions:
                        raise ConfigurationError(
                            f"a closed loop asks for each output by itself, and those of {point.config.readout.label} "
                            "depend on other steps: take a module that treats steps independently"
                        )
                    found = [(readout, forecast(reservoir, readout, task.test.inputs, horizon, on_steps))]
                if store is None:
                    # Instruments play more than is counted where a run takes several bursts.
                    run.counter.add(whole - reservoir.counters.steps)
                warnings = about_counters(reservoir.counters, reservoir.spec) + watch.warnings()
            _keep_all(run, found, reservoir.provenance(), warnings)


def _preparing(run: PointRun, nodes: int) -> Prepare:
    """Says what a readout cannot be exported for, and where one that is trained by gradients keeps its training."""

    def prepare(point: Point, readout: Readout) -> None:
        run.warn(state_readout(point.config).about_export(nodes, run.task))
        if isinstance(point.config.readout, GradientReadoutConfig):
            files = run.files if point is run.point else RowFiles(run.files.folder, point.number)
            files.training.mkdir(parents=True, exist_ok=True)
            own = cast(Any, readout)
            own.folder, own.progress = files.training, lambda now: run.say(now.standing)

    return prepare


def _paced(run: PointRun, reservoir: Reservoir) -> tuple[list[Burst], np.ndarray | None]:
    """The plan, with chunks that follow the pace of the device, and the states that it began with (`pace.begin`)."""
    whole = plan_of(run.point, run.task, max_batch=reservoir.spec.max_batch)
    steps, begun = begin(reservoir, whole, run.point.config.run.chunk_steps)
    config, device = run.point.config.reservoir, reservoir.device
    if isinstance(config, SimulatedConfig) and reservoir.native == "torch":
        need = config.for_inputs(run.task.channels).drive_memory()
        columns = need.nodes + need.inputs + run.task.outputs
        # Sequences of different lengths are driven whole, and `chunk_steps` counts the steps of all of them.
        batch = max(burst.batch for burst in whole) if run.task.train.in_one_piece else 1
        fitting = fitting_steps(need, batch, steps, free_bytes(device), columns, device)
        if fitting < steps:
            log.info("chunks of %d steps instead of %d: more do not fit into the memory of %s", fitting, steps, device)
        steps = fitting
    return plan_of(run.point, run.task, chunk_steps=steps, max_batch=reservoir.spec.max_batch), begun


@contextlib.contextmanager
def opened(point: Point, task: Task) -> Iterator[Reservoir]:
    """The reservoir of a point, open for the inputs of its task."""
    with OpenDevice() as device, device.of(point, task) as reservoir:
        yield reservoir


def harvest_point(
    point: Point, task: Task, steps: int, counter: StepCounter, device: OpenDevice, accept_change: str | None
) -> StateStore:
    """The point's store, filled: what an earlier harvest has is kept. `steps` are what it takes as a whole."""
    name, path = point.config.reservoir.name, store_path(point, task)
    with harvest_lock(point, task):
        store = find_states(point, task)
        if store is not None and (about := about_calibration(store, point.config.reservoir)):
            log.warning("%s", about)
        if store is not None and store.complete:
            counter.add(steps)
            return store
        if store is not None and store.committed:
            # Before the device: on what is damaged nothing can be built.
            counter.say(f"{name}: checking what is there")
            check(store, harvest_plan(point, task, store), counter.say)
        counter.say(f"{name}: opening")
        before = counter.done
        with device.of(point, task) as reservoir:
            on_steps = following(reservoir, counter.add)
            store, begun = open_store(point, task, reservoir)
            on_steps(0)
            there = f" ({store.committed} chunks are there already)" if store.committed else ""
            counter.say(f"{name}: harvesting into {path}{there}")
            bursts = harvest_plan(point, task, store)
            for about in filter(None, (about_interruptions(reservoir.spec, bursts), about_progress(reservoir, bursts))):
                log.warning("%s", about)
            whole = device.opening_steps + driven_on(reservoir).bursts(bursts)
            counter.total += whole - steps
            # What earlier processes have driven counts as if it had been driven at once.
            counter.add(sum(chunk.steps for chunk in kept(bursts)[: store.committed]))
            harvest(reservoir, bursts, store, on_steps, accept_change=accept_change, begun=begun)
            # Instruments play more than is counted where a run takes several bursts.
            counter.add(whole - (counter.done - before))
            return store


def _harvested(run: PointRun) -> StateStore | None:
    """The states of an earlier harvest, if they are complete. A note in the result says so."""
    store = _harvest_of(run.point, run.task)
    if store is None:
        return None
    if not store.complete:
        run.result.notes.append(
            f"{store.path} is an unfinished harvest of this experiment and was not used: "
            "`reservoir-hw harvest` goes on with it"
        )
        return None
    run.result.notes.append(
        f"states were read from {store.path}, harvested {store.facts['provenance']['time']}; the device was "
        "not driven (run.states=null drives it)"
    )
    if about := about_calibration(store, run.point.config.reservoir):
        run.result.warn(about)
    run.result.warn(*about_changes(store))
    run.point.config.reservoir.learn_name(device_of(store).get("label", ""))
    if run.point.config.reservoir.declares_inputs:
        # Its settings are the server's: the file says nothing of them.
        try:
            with opened(run.point, run.task) as device:
                if changes := changes_since(store, device, run.accept_change):
                    run.result.warn(f"{store.path}: {in_words(changes)} (accepted: {run.accept_change})")
        except DeviceError as error:
            run.result.warn(f"{store.path}: whether the device is still as it was could not be asked: {error}")
    return store


def _check_register(reservoir: ReservoirConfig, config: ExperimentConfig, task: Task) -> None:
    """Raise `ConfigurationError` where a shift register would be learned from, or tested, before it is full."""
    back, training = reservoir.past_steps, config.training
    begins = f"it looks {back} steps back, but"
    washout = getattr(config.readout, "washout", 0)
    learned_from = int(task.train.ends.min()) if task.train.at_end else washout
    if back > learned_from and not training.priming_passes:
        what = f"a sequence has only {learned_from + 1} steps" if task.train.at_end else f"readout.washout is {washout}"
        more = "" if task.train.at_end else f"set readout.washout to at least {back}, or "
        raise ConfigurationError(
            f"{begins} {what}: the register would be learned from before it is full; {more}take fewer lags"
        )
    warmup = task.test.inputs.shape[1] - 1 if task.closed_loop else training.test_warmup_steps
    if back > warmup and not goes_on(task, training) and (task.test_follows or task.closed_loop):
        key = "task.closed_loop.warmup_steps" if task.closed_loop else "training.test_warmup_steps"
        raise ConfigurationError(
            f"{begins} {key} is {warmup + task.closed_loop}: the test would begin before the register is full; "
            f"set it to at least {back + task.closed_loop}, or take fewer lags"
        )


def _check_range(reservoir: ReservoirConfig, task: Task) -> None:
    """Raise `ConfigurationError` where a user's data leave the declared range of the device, before it is driven."""
    limits, mask = getattr(reservoir, "input_range", None), reservoir.planned_mask()
    if limits is None or reservoir.out_of_range == "clip":
        return
    drawn = None
    if mask is not None:
        drawn = mask.build(reservoir.inputs or task.inputs, task.inputs, seed=getattr(reservoir, "seed", 0))
    for name, split in (("train", task.train), ("test", task.test)):
        for row, end in enumerate(split.ends if split.inputs.shape[1] else ()):
            u = split.inputs[row, : end + 1]
            driven = u if drawn is None else drawn.apply(u)
            beyond = ((driven < np.float32(limits[0])) | (driven > np.float32(limits[1]))).any(axis=1)
            if beyond.any():
                raise ConfigurationError(
                    f"{task.place_of(name, row, int(beyond.argmax()))}: the inputs leave the range {limits[0]:g} to "
                    f"{limits[1]:g} of the device there ({int(beyond.sum())} such rows in this series); give the scale "
                    "a wider margin (task.scale.margin), or set reservoir.out_of_range=clip, which counts them"
                )


def check_recording(point: Point, task: Task) -> None:
    """Raise `ConfigurationError` where the trace of a replay lacks inputs that the plan drives."""
    reservoir = point.config.reservoir.for_inputs(state_readout(point.config).channels(task))
    if not isinstance(reservoir, ReplayConfig):
        return
    with cast(Replay, build_reservoir(reservoir)) as replay:
        for burst in plan_of(point, task, max_batch=replay.spec.max_batch):
            replay.reset(burst.batch)
            for chunk in burst.chunks:
                try:
                    replay.follow(chunk.inputs)
                except InputRangeError as error:
                    why = str(error).removeprefix(f"{reservoir.trace}: ")
                    raise ConfigurationError(
                        f"the trace {reservoir.trace} does not hold the inputs of this task: {why}"
                    ) from error


def _harvest_of(point: Point, task: Task) -> StateStore | None:
    """What an earlier harvest of this point has, unless the point is to be driven in any case."""
    settings = point.config.run
    return None if settings.states is None or settings.record is not None else find_states(point, task)


def _stored(run: PointRun, store: StateStore) -> Iterator[tuple[DriveChunk, np.ndarray]]:
    bursts = harvest_plan(run.point, run.task, store)
    return stored(store, bursts, run.counter.add, repetitions=run.point.config.training.repetitions)


def _keep_all(
    run: PointRun, found: Sequence[tuple[Readout, np.ndarray]], device: dict[str, Any], warnings: Sequence[str]
) -> None:
    """Keep what was found for the first point of a drive, which speaks for all, and of the others at their turn."""
    run.warn(warnings)
    for point, (readout, outputs) in zip([run.point, *run.others], found, strict=True):
        run.found[point.number] = partial(_keep, readout=readout, outputs=outputs, device=device)
    run.found.pop(run.point.number)(run)


def _keep(run: PointRun, readout: Readout, outputs: np.ndarray, device: dict[str, Any]) -> None:
    evaluation = run.task.evaluate(outputs, "scores")
    readout.save(run.files.path_of(run.files.weights))
    write_array(run.files.path_of(run.files.outputs), outputs)
    files = {"file": run.files.weights, "outputs": run.files.outputs}
    record = {"reservoir": device, "readout": {**files, **readout.report_}, "ranges": run.task.ranges}
    if run.task.test.lengths is not None:
        record["test_lengths"] = np.asarray(run.task.test.lengths).tolist()
    run.keep(evaluation, record)
    run.result.readout = readout
