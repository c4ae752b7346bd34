"""The two devices of a comparison: their files, what both are driven with, and what each of them answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.backends.replay import ReplayConfig, Tape, recorded_spec
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir, reservoir_section
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import Point, drop_baselines, parse_experiment, single_point
from reservoir_hw.experiment.devices.measure import take
from reservoir_hw.experiment.run.in_one_pass import InOnePass
from reservoir_hw.experiment.run.learning import States
from reservoir_hw.experiment.states.drive import Recorder, driven
from reservoir_hw.experiment.states.plan import Burst, DriveChunk, plan_of, steps_of
from reservoir_hw.experiment.states.progress import StepCounter
from reservoir_hw.measures import Live, Measured, Recorded, StatesOnDisk
from reservoir_hw.tasks.task import Task

_CHUNK = 4096


@dataclass(frozen=True)
class Settings:
    """How devices are driven, besides a task."""

    steps: int
    washout: int
    repeats: int
    seed: int
    input_range: tuple[float, float] | None
    measures: Sequence[str]


@dataclass
class Side:
    """One of the two devices. `letter` is "A" or "B"; `record` is what the device says about itself in the end.

    Measures are taken of the first `measured_repeats` repeats of the common drive; if None, of drives of their own.
    """

    letter: str
    name: str
    config: ReservoirConfig
    point: Point | None
    spec: ReservoirSpec
    safe_range: tuple[float, float] | None
    repeats: int
    task_repeats: int
    planned: int
    record: dict[str, Any]
    measured_repeats: int | None = None
    measured: dict[str, Measured] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    bursts: list[Burst] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)

    def drive(
        self, drive: np.ndarray, task: Task | None, settings: Settings, folder: Path, counter: StepCounter
    ) -> str | None:
        """Open the device and let it answer; the recordings go into `folder`.

        Returns why the task could not be driven, if it could not.
        """
        refused = None
        counter.say(f"{self.letter}: opening")
        with build_reservoir(self.config) as reservoir:
            counter.say(f"{self.letter}: repeats of the same drive")
            pieces = tuple(DriveChunk(drive[:, at : at + _CHUNK]) for at in range(0, drive.shape[1], _CHUNK))
            with Recorder(reservoir, folder / self.letter.lower(), chunk_steps=_CHUNK):
                for _ in driven(reservoir, [Burst(pieces)] * self.repeats, counter.add):
                    pass
            if self.measured_repeats is None:
                source = live(reservoir, settings, counter)
            else:
                source = _first_repeats(folder / self.letter.lower(), self.measured_repeats, settings.washout)
            for name in settings.measures:
                take(source, name, counter, self.measured, self.reasons)
            if task is not None:
                counter.say(f"{self.letter}: the task")
                refused = self._drive_task(reservoir, task, folder, counter)
            self.record = reservoir.provenance()
        return refused

    def states(self, run: int) -> States:
        """All chunks of a run of the task, from its recording."""
        assert self.point is not None
        repetitions = self.point.config.training.repetitions
        with ReplayConfig(kind="replay", trace=str(self.runs[run])).build() as recording:
            yield from driven(recording, self.bursts, lambda steps: None, repetitions=repetitions)

    def _drive_task(self, reservoir: Reservoir, task: Task, folder: Path, counter: StepCounter) -> str | None:
        assert self.point is not None
        self.bursts = plan_of(self.point, task, max_batch=reservoir.spec.max_batch)
        for run in range(self.task_repeats):
            path = folder / f"task-{self.letter.lower()}-{run}"
            try:
                with Recorder(reservoir, path, chunk_steps=self.point.config.run.chunk_steps):
                    repetitions = self.point.config.training.repetitions
                    for _ in driven(reservoir, self.bursts, counter.add, repetitions=repetitions):
                        pass
            except InputRangeError as error:
                return f"{self.letter} cannot be driven with the inputs of the task: {error}"
            self.runs.append(path)
        return None


def live(reservoir: Reservoir, settings: Settings, counter: StepCounter | None = None) -> Live:
    """The measures of an open device. Their long drive is five times as long as a repeat of the comparison."""
    return Live(
        reservoir,
        steps=5 * settings.steps,
        washout=settings.washout,
        repeats=max(settings.repeats, 2),
        input_range=settings.input_range,
        seed=settings.seed,
        on_steps=None if counter is None else counter.add,
    )


def _first_repeats(trace: Path, repeats: int, washout: int) -> Recorded:
    """Measures of a recording that has a data set for each repeat of a drive."""
    datasets = list(StateStore.open(trace).datasets.values())[:repeats]
    pairs = [
        (one.read_inputs(slice(0, 1), 0, one.steps), StatesOnDisk(one.states, steps=one.steps)) for one in datasets
    ]
    return Recorded(*pairs, washout=washout)


def configured(path: str | Path, task_file: str | Path | None) -> tuple[ReservoirConfig, Point | None]:
    """The reservoir of a file, and the experiment of the task with this reservoir. Raises as `point_of`."""
    if task_file is None:
        return parse_reservoir(load_document(path)), None
    point = point_of(load_document(task_file, reservoir=path))
    return point.config.reservoir, point


def point_of(document: Document) -> Point:
    """The experiment of a file; `vary`, `sweep` and `baselines` are left out.

    Raises `ConfigurationError` for a readout that is not trained in one pass over states.
    """
    drop_baselines(document)
    for section in ("vary", "sweep"):
        document.data.pop(section, None)
    config = parse_experiment(document)
    if config.readout.trained != "in one pass":
        raise ConfigurationError(
            f"{document.origin(('readout',))}: the readout is trained on states that are there already, and readout "
            f"{config.readout.kind} drives its reservoir itself; take another one, for instance `kind: ridge`"
        )
    return single_point(config)


def twin_of(path: str | Path) -> tuple[str, str]:
    """The file that `hil.twin` of a reservoir file names, and where that stands.

    Raises `ConfigurationError` where none is named, or it is not there.
    """
    section = reservoir_section(load_document(path))
    hil = parse_reservoir(section).hil
    if hil is None or hil.twin is None:
        raise ConfigurationError(f"{path} names no `hil.twin:` to be compared with; give a second file")
    origin = section.origin(("hil", "twin"))
    if not Path(hil.twin).is_file():
        raise ConfigurationError(f"{origin}: hil.twin: there is no file {hil.twin}")
    return hil.twin, origin


def check_twin(device: Side, twin: Side, origin: str) -> None:
    """Raise `ConfigurationError` where a twin has other widths than its device."""
    (inputs, nodes), (its_inputs, its_nodes) = ((side.spec.inputs, side.spec.nodes) for side in (device, twin))
    if (inputs, nodes) != (its_inputs, its_nodes):
        raise ConfigurationError(
            f"{origin}: hil.twin has {its_inputs} inputs and {its_nodes} nodes, the device {inputs} and {nodes}: "
            "a twin has as many as its device"
        )


def task_of(points: Sequence[Point], task_file: str | Path) -> Task:
    """The data of the task, checked against both devices."""
    task = points[0].config.task.build()
    if task.closed_loop:
        raise ConfigurationError(
            f"{task_file}: a forecast in closed loop is driven by the readout itself, so that recorded states cannot "
            "judge it; set `task.closed_loop: false`, or take another task"
        )
    for section in ("reservoir", "readout", "training"):
        for point in points:
            try:
                InOnePass().check(section, point.config, task)
            except ConfigurationError as error:
                raise ConfigurationError(f"{task_file}: {section}: {error}") from None
    return task


def channels_of(configs: Sequence[ReservoirConfig], inputs: int | None, task: Task | None) -> Channels:
    """Channels that both are driven with: those of the task, else what is given or one of the files says, else 1."""
    if task is not None:
        return task.channels
    known = [inputs]
    for config in configs:
        known.append(recorded_spec(StateStore.open(config.trace)).inputs if isinstance(config, ReplayConfig) else None)
        known.append(None if isinstance(config.input_mask, MaskConfig) else config.inputs)
    return Channels(next((number for number in known if number is not None), 1))


def look_at(letter: str, name: str, config: ReservoirConfig, point: Point | None, settings: Settings) -> Side:
    """Open a device and close it again, to know what it declares before anything is driven."""
    replay = isinstance(config, ReplayConfig)
    with build_reservoir(config) as reservoir:
        return Side(
            letter=letter,
            name=name,
            config=config,
            point=point,
            spec=reservoir.spec,
            safe_range=settings.input_range or reservoir.known_range,
            # How often a recording can be repeated is known once the drive is.
            repeats=settings.repeats,
            # A replay gives a recorded run again, which is no repeat.
            task_repeats=1 if replay else settings.repeats,
            planned=0 if replay else live(reservoir, settings).planned_steps(settings.measures),
            record=reservoir.provenance(),
        )


def task_steps(side: Side, task: Task) -> int:
    """Steps of all repeats of the task."""
    assert side.point is not None
    return side.task_repeats * steps_of(plan_of(side.point, task, max_batch=side.spec.max_batch))


def common_drive(sides: Sequence[Side], settings: Settings) -> np.ndarray:
    """What both are driven with, (1, time, inputs): random over the range that both have, or what was recorded.

    A recording answers only what it holds, and only as often as it holds that: `repeats` of such a side becomes that
    number. Measures of both are then taken of this drive, and of as many repeats, because those of other inputs would
    be others. Raises `ConfigurationError` where the devices have no inputs in common.
    """
    a, b = sides
    length = settings.washout + settings.steps
    if a.spec.inputs != b.spec.inputs:
        raise ConfigurationError(
            f"{a.name} takes {a.spec.inputs} inputs and {b.name} {b.spec.inputs}: they cannot be driven with the same; "
            "an `input_mask:` in their files spreads the same channels over both"
        )
    replays = [(side, side.config.trace) for side in sides if isinstance(side.config, ReplayConfig)]
    if replays:
        tapes = [Tape(StateStore.open(trace), from_rest=True) for _, trace in replays]
        inputs, counts = _recorded_by_all(tapes, length)
        if len(inputs) <= settings.washout:
            names = " and ".join(side.name for side, _ in replays)
            raise ConfigurationError(
                f"{names}: no drive of more than {settings.washout} steps from a reset on is recorded"
                f"{' by both' if len(replays) > 1 else ''}; a smaller --washout may help"
            )
        for (side, _), count in zip(replays, counts, strict=True):
            side.repeats = min(settings.repeats, count)
        for side in sides:
            side.planned, side.measured_repeats = 0, min(a.repeats, b.repeats)
        return inputs[None]
    low, high = settings.input_range or _common_range(a, b)
    drawn = generator(settings.seed, "compare").uniform(low, high, (1, length, a.spec.inputs))
    # Numbers that both can hold.
    return drawn.astype(min(a.spec.numpy_dtype, b.spec.numpy_dtype, key=lambda dtype: dtype.itemsize))


def _common_range(a: Side, b: Side) -> tuple[float, float]:
    ranges = [side.safe_range for side in (a, b) if side.safe_range is not None] or [(-1.0, 1.0)]
    low, high = max(limits[0] for limits in ranges), min(limits[1] for limits in ranges)
    if low >= high:
        raise ConfigurationError(
            f"{a.name} takes inputs from {ranges[0][0]:g} to {ranges[0][1]:g}, {b.name} from {ranges[1][0]:g} to "
            f"{ranges[1][1]:g}: there are none that both take"
        )
    return low, high


def _recorded_by_all(tapes: Sequence[Tape], length: int) -> tuple[np.ndarray, list[int]]:
    """The drive (time, inputs) that all tapes hold most often, up to `length` steps of it, and how often each does."""
    best, counts, rank = tapes[0].first_inputs[:0], [0] * len(tapes), (0, 0)
    seen: set[int] = set()
    for number in range(tapes[0].sequences):
        if number in seen:
            continue
        u = tapes[0].inputs(number, 0, length)
        holding = [
            [n for n in tape.beginning_with(u[0], np.zeros(tape.sequences)) if tape.agreement(n, 0, u) == len(u)]
            for tape in tapes
        ]
        seen |= set(holding[0])
        found = (min(map(len, holding)), len(u))
        if found[0] and found > rank:
            best, counts, rank = u, [len(held) for held in holding], found
    return best, counts
