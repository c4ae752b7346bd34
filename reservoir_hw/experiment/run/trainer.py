"""What an experiment asks of a way to train a readout, and what it gives it: a point at work, with its files.

And what a point takes: steps, states, and the memory of the device that computes it.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from reservoir_hw.backends.simulated.memory import DriveMemory, does_not_fit, in_units
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.core.knobs import about_monitors
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, Point
from reservoir_hw.experiment.run.open_device import OpenDevice
from reservoir_hw.experiment.run.processes import Processes
from reservoir_hw.experiment.run.result import Result, Source
from reservoir_hw.experiment.states.plan import Burst
from reservoir_hw.experiment.states.progress import StepCounter
from reservoir_hw.tasks.task import Evaluation, Row, Task

# What the libraries of a GPU take for themselves when they are first used.
_LIBRARIES = 64 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """Estimated bytes on `device`: weights, the largest chunk of `batch` sequences of `steps` steps, the readout."""

    device: str
    weights: int
    chunk: int
    readout: int
    batch: int
    steps: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.chunk + self.readout

    def __str__(self) -> str:
        sequences = "1 sequence" if self.batch == 1 else f"{self.batch:,} sequences"
        return (
            f"about {in_units(self.total)} of memory on {self.device}: weights {in_units(self.weights)}, a chunk of "
            f"{self.steps:,} steps of {sequences} {in_units(self.chunk)}, the readout {in_units(self.readout)}"
        )


def device_memory(reservoir: SimulatedConfig, bursts: Sequence[Burst], outputs: int) -> DeviceMemory:
    """What a point takes where its reservoir computes, whose number of inputs is configured."""
    need = reservoir.drive_memory()
    sizes = (chunk.inputs.shape[:2] for burst in bursts for chunk in burst.chunks)
    batch, steps = max(sizes, key=lambda size: need.bytes(*size))
    return DeviceMemory(
        device=getattr(reservoir, "device", "cpu"),
        weights=reservoir.weight_bytes(),
        chunk=need.bytes(batch, steps),
        readout=readout_bytes(need.nodes + need.inputs + outputs),
        batch=batch,
        steps=steps,
    )


def about_device_memory(reservoir: ReservoirConfig) -> str:
    """What a reservoir file on a GPU takes there, for any drive; nothing of other reservoirs."""
    device = getattr(reservoir, "device", "cpu")
    if device == "cpu" or not isinstance(reservoir, SimulatedConfig):
        return ""
    # How many there will be is not known, and makes little difference.
    known = reservoir if reservoir.inputs is not None else reservoir.model_copy(update={"inputs": 1})
    step = known.drive_memory().bytes(1, 1000) - known.drive_memory().bytes(1, 0)
    weights = in_units(known.weight_bytes())
    return f"It takes about {weights} of memory on {device}, and {in_units(step)} for 1,000 steps of a sequence"


def readout_bytes(columns: int) -> int:
    """Of the sums of a ridge readout over so many features and targets: two matrices and a block of rows in float64."""
    return 8 * (1 + columns) * (2 * (1 + columns) + 512)


def fitting_steps(need: DriveMemory, batch: int, most: int, free: int, columns: int, device: str) -> int:
    """Steps of a chunk of `batch` sequences, `most` at most, that fit into `free` bytes beside a readout of `columns`.

    Raises `OutOfMemory` where not even one step does.
    """
    left = max(0, free - readout_bytes(columns) - _LIBRARIES)
    if need.bytes(batch, most) <= left:
        return most
    steps = need.steps_that_fit(left, batch)
    if not steps:
        raise OutOfMemory(does_not_fit(need, batch, 1, left, device))
    return min(most, steps)


class RowFiles:
    """Where the files of a row lie in the run folder, and the recording of its drives, if there is one."""

    def __init__(self, folder: Path, number: int | str, record: str | None = None) -> None:
        stem = f"{number:03d}" if isinstance(number, int) else number
        self.folder, self.record = folder, record
        self.training = folder / "training" / stem
        """The folder of the training."""
        self.weights = f"readout/{stem}.safetensors"
        """In the run folder, as those that follow: outputs for the test, a tokenizer, a text that the model wrote."""
        self.outputs = f"outputs/{stem}.npy"
        self.tokenizer = f"readout/{stem}.tokenizer.json"
        self.sample = f"samples/{stem}.txt"

    def path_of(self, file: str) -> Path:
        """Where a file of the row is written; its folder is made."""
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        return path


@dataclass(frozen=True)
class PointRun:
    """What a trainer gets: a point with its task, its files, and the result that its row goes into."""

    point: Point
    task: Task
    files: RowFiles
    result: Result
    counter: StepCounter
    accept_change: str | None = None
    """Why a device may have other settings than when its states were harvested."""
    others: Sequence[Point] = ()
    """Points further on that share the drive of this one."""
    device: OpenDevice = field(default_factory=OpenDevice)
    """Opens the reservoir, or has it open already."""
    found: dict[int, Any] = field(default_factory=dict)
    """What was found for points that share a drive, by their numbers, until it is their turn."""
    records: str = "rows"
    """Where the provenance keeps the record."""
    processes: Processes = field(default_factory=Processes)
    """Those that share the training."""
    began: float = field(default_factory=time.monotonic)
    processor_began: float = field(default_factory=time.process_time)

    @property
    def label(self) -> str:
        """The name of the row, with that of the device as soon as it said it."""
        return self.point.config.reservoir.with_own_name(self.point.label)

    def say(self, what: str) -> None:
        """What is being done from now on."""
        place = f" [{self.point.place}]" if self.point.place else ""
        self.counter.say(f"{self.point.name}{place}: {what}")

    def warn(self, warnings: Iterable[str]) -> None:
        """What casts doubt on the row of this point, and of those that share its drive."""
        more = f" and {len(self.others)} more on its drive" if self.others else ""
        self.result.warn(*(f"{self.label}{more}: {warning}" for warning in warnings))

    def keep(
        self,
        evaluation: Evaluation,
        record: dict[str, Any],
        notes: Sequence[str] = (),
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Put the finished row into the result and its folder, before anything else can go wrong.

        `record` is for the provenance; its `reservoir` is the device, or that of the first layer. `details` are those
        of the row.
        """
        # Of processors those of all processes that share the training.
        processor = sum(self.processes.gathered(time.process_time() - self.processor_began))
        took = {"seconds": time.monotonic() - self.began, "processor_seconds": processor}
        settings = self.point.config.readout.model_dump(mode="json", serialize_as_any=True)
        facts = {"readout": settings, **took, **details}
        if self.records == "rows":
            outputs = self.files.folder / self.files.outputs
            self.result.sources[len(self.result.rows)] = Source(self.point, self.task, outputs)
        else:
            facts["baseline"] = True
        knobs = record.get("reservoir", {}).get("spec", {}).get("knobs", {})
        units = {f"reservoir.knobs.{name}": knob["unit"] for name, knob in knobs.items() if knob["unit"]}
        if shown := {key: units[key] for key in self.point.values if key in units}:
            facts["units"] = shown
        if self.task.facts:
            record["task"] = dict(self.task.facts)
        if self.task.series is not None:
            record["series"] = self.task.series.model_dump(mode="json")
        self.result.rows.append(Row(self.label, self.point.values, evaluation, facts))
        self.result.provenance.setdefault(self.records, []).append({**self._name, **took, **record})
        self.result.notes += notes
        self.result.save()

    @contextlib.contextmanager
    def on(self, devices: Sequence[Reservoir]) -> Iterator[None]:
        """While the devices are at work: masks that nobody asked for are told, and monitors beyond their limits.

        After a fault what is known is kept.
        """
        for device in devices:
            about = device.about_mask
            if about is not None and device.spec.identity.simulated:
                self.result.notes.append(f"{self.label}: {about}")
            elif about is not None:
                self.warn([about])
        try:
            yield
        except BaseException as error:
            try:
                self.result.provenance["unfinished"] = {**self._name, **device_records(devices)}
            except Exception as reading:
                # A dead device cannot be read back; why it died is what counts.
                error.add_note(f"its settings could not be read back: {reading}")
            raise
        for device in devices:
            self.warn(about_monitors(device.monitored()))

    @property
    def _name(self) -> dict[str, Any]:
        return {"label": self.label, "point": dict(self.point.values)}


def device_records(devices: Sequence[Reservoir]) -> dict[str, Any]:
    """What the provenance of a row says about its devices; `reservoir` is that of the first layer."""
    found = [device.provenance() for device in devices]
    records = {"reservoir": found[0] if found else None, "further_reservoirs": found[1:]}
    return {name: record for name, record in records.items() if record}


@dataclass(frozen=True)
class Cost:
    """What a point takes, as far as the configuration tells.

    `device_steps` are time steps of all sequences over all layers, in `chunks` where they are driven so.
    `state_bytes` are None where the number of nodes is not known. `training_steps` are updates of the weights, `bursts`
    those of instruments. `stored` says that the states are those of a harvest. `progress_steps` are what the progress
    of a run counts: device steps, or the tokens that a model reads. `on_device` is the memory of a simulation on a
    GPU whose states a readout learns from.
    """

    device_steps: int
    progress_steps: int
    state_bytes: int | None
    chunks: int = 0
    training_steps: int = 0
    bursts: int = 0
    stored: bool = False
    on_device: DeviceMemory | None = None


class Trainer(ABC):
    """Checks, estimates and runs the points of an experiment whose readouts it trains."""

    shares: ClassVar[bool]
    """Whether several processes can train one readout together."""

    @abstractmethod
    def check(self, section: str, config: ExperimentConfig, task: Task) -> None:
        """Raise `ConfigurationError` where this section does not fit the others, as far as it can be known."""

    def drive_of(self, point: Point, task: Task) -> str | None:
        """Points for which this is the same text are trained on one drive; None: on a drive of its own."""
        return None

    @abstractmethod
    def metrics(self, config: ExperimentConfig, task: Task) -> list[str]:
        """Names of the metrics that a row on this task has."""

    @abstractmethod
    def cost(self, point: Point, task: Task, *, harvest: bool = False) -> Cost:
        """What the point, or its harvest, will take; opens nothing."""

    @abstractmethod
    def run(self, run: PointRun) -> None:
        """Train, judge and keep the point's readout."""
