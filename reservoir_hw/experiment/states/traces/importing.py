"""From files that others measured to a trace that can be replayed, measured and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from reservoir_hw.core import arrays, provenance
from reservoir_hw.core.configuration import Config, Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.store import Region, StateStore
from reservoir_hw.core.tables.columns import Columns, choose
from reservoir_hw.core.tables.configuration import ColumnsConfig, ReadConfig, TimeConfig, resolve
from reservoir_hw.core.tables.sources import Source, opened
from reservoir_hw.experiment.states.drive import OnSteps
from reservoir_hw.experiment.states.plan import slices
from reservoir_hw.experiment.states.progress import Progress, StepCounter

_Pair = tuple[float, float]


class ScaleConfig(Config):
    """An affine map to dimensionless numbers."""

    range: _Pair | Literal["data"] = Field(
        default="data", description="two values in the unit of the file; data: the least and the greatest of it"
    )
    onto: _Pair = Field(default=(-1.0, 1.0), description="what becomes of them")

    @model_validator(mode="after")
    def _apart(self) -> ScaleConfig:
        if self.onto[0] == self.onto[1] or self.range[0] == self.range[1]:
            raise ValueError("the two values of `range` and of `onto` must differ")
        return self


class InputsConfig(ColumnsConfig):
    """What the device was driven with."""

    file: str | None = Field(default=None, description="another file than that of the states")
    scale: ScaleConfig | None = Field(default=None, description="by default the numbers of the file are the inputs")


class StatesConfig(ColumnsConfig):
    """What was measured."""

    drop: list[Literal["constant", "nan"]] = Field(
        default=[], description="leave out columns that never change, or that hold a NaN; they are counted and named"
    )


class DeviceConfig(Config):
    """Which device it was."""

    vendor: str
    model: str
    serial: str = ""
    firmware: str = ""
    simulated: bool = Field(description="no default: every result says whether it came from hardware")


class MappingConfig(Config):
    """A mapping file."""

    file: str | None = Field(
        default=None,
        description="relative to the mapping file; data:NAME lies in the folder of RESERVOIR_HW_DATA; files on the "
        "command line stand in for it",
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="of `file`; another content is refused"
    )
    read: ReadConfig = ReadConfig()
    device: DeviceConfig
    inputs: InputsConfig
    states: StatesConfig
    rows: tuple[NonNegativeInt, NonNegativeInt | None] = Field(
        default=(0, None), description="first row and the one behind the last"
    )
    latency_steps: NonNegativeInt = Field(
        default=0, description="rows by which the response to an input stands below it; removed on import"
    )
    time: TimeConfig | None = None
    step_period_s: NonNegativeFloat | None = Field(default=None, description="where there is no time column")
    dtype: Literal["float32", "float64"] = "float32"
    sample: str = ""
    operator: str = ""
    notes: str = ""

    @model_validator(mode="after")
    def _one_clock(self) -> MappingConfig:
        if self.time is not None and self.step_period_s is not None:
            raise ValueError("give either `time` or `step_period_s`, not both")
        return self


_CHUNK_BYTES = 4 << 20
_SEQUENCES_PER_CHUNK = 64
# Steps whose lengths differ by more than this share of the mean are worth a remark.
_UNEVEN = 0.05


def import_trace(
    mapping: str | Path | MappingConfig,
    out: str | Path,
    files: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> StateStore:
    """Convert measured data into a trace at `out`, as a mapping file says.

    What its reader should know about how it was made is in `facts["provenance"]["notes_on_import"]`.

    Parameters
    ----------
    mapping
        A mapping file, or its content (paths in it are then relative to the current folder).
    out
        The store that is made.
    files
        Files of the same form in the place of the mapping's `file`: each becomes a data set, "000", "001", and so on.
    progress
        Called with (what is being done, steps done, steps in all).

    Raises `ConfigurationError` for what does not fit: unknown columns (with near matches), lengths that differ, NaN
    in columns that are used (with row and column), a time that does not increase.
    """
    if isinstance(mapping, MappingConfig):
        config, folder = mapping, Path()
    else:
        config, folder = validate(MappingConfig, Document.from_file(mapping)), Path(mapping).parent
    paths = [Path(file) for file in files]
    if not paths:
        if config.file is None:
            raise ConfigurationError("the mapping names no `file`; name one, or several, on the command line")
        paths = [resolve(config.file, folder)]
    with ExitStack() as stack:
        sources = [stack.enter_context(opened(path, config.read)) for path in paths]
        if not files and config.sha256 not in (None, sources[0].sha256):
            raise ConfigurationError(
                f"{paths[0]} has another content than the mapping expects: sha256 {sources[0].sha256}"
            )
        used = list(sources)
        if config.inputs.file is not None:
            used.append(stack.enter_context(opened(resolve(config.inputs.file, folder), config.read)))
        drivers = sources if config.inputs.file is None else [used[-1]] * len(sources)
        parts = [_Part.of(source, driver, config) for source, driver in zip(sources, drivers, strict=True)]
        counter = StepCounter(progress, 2 * sum(part.steps for part in parts))
        counter.say("checking")
        for part in parts:
            part.look(counter.add)
        notes = [note for source in used for note in source.notes]
        _drop_columns(parts, config, notes)
        scale = _Scale.of(config, parts)
        clock = _clock(parts, config, notes)
        inputs, states = parts[0].inputs, parts[0].states
        both = [name for name, n in zip(inputs.names, inputs.numbers, strict=True) if n in states.numbers]
        if both and inputs.where == states.where:
            # Sometimes that is meant, and sometimes a forgotten `without`.
            notes.append(f"the states include the inputs {', '.join(both)}")
        record = {
            **provenance.collect(config.model_dump(mode="json")),
            "files": [{"file": s.path.name, "bytes": s.size, "sha256": s.sha256} for s in used],
            "notes_on_import": notes,
            **config.model_dump(include={"sample", "operator", "notes"}),
            "step_period": clock,
        }
        spec = _spec(config, parts[0], used, scale, clock)
        facts = {"made_by": "import", "spec": spec.model_dump(mode="json"), "provenance": record}
        store = StateStore.create(out, facts)
        counter.say("writing")
        store.commit(sum(_write(store, number, part, scale, spec, counter.add) for number, part in enumerate(parts)))
        store.close_segment([], complete=True)
    return store


@dataclass
class _Part:
    """Inputs and states of one file, row for row."""

    source: Source
    inputs: Columns
    states: Columns
    rows: slice
    latency: int
    # Of the states: columns that hold something not finite, with the first such row; least and greatest value.
    broken: dict[int, int] = field(default_factory=dict)
    low: np.ndarray = field(default_factory=lambda: np.empty(0))
    high: np.ndarray = field(default_factory=lambda: np.empty(0))
    # Least and greatest input.
    driven: tuple[float, float] = (np.inf, -np.inf)

    @classmethod
    def of(cls, source: Source, driver: Source, config: MappingConfig) -> _Part:
        inputs, states = choose(driver, config.inputs, "inputs"), choose(source, config.states, "states")
        if inputs.steps != states.steps:
            raise ConfigurationError(
                f"inputs ({inputs.where}) have {inputs.steps} rows, states ({states.where}) {states.steps}; "
                "is one of them `layout: nodes_first`?"
            )
        if inputs.sequences not in (1, states.sequences):
            raise ConfigurationError(
                f"inputs ({inputs.where}) hold {inputs.sequences} sequences, states ({states.where}) {states.sequences}"
            )
        first, stop = config.rows
        stop = states.steps if stop is None else stop
        if stop > states.steps or stop - config.latency_steps <= first:
            raise ConfigurationError(
                f"rows {first} to {stop} with latency_steps {config.latency_steps}: {states.where} has "
                f"{states.steps} rows"
            )
        return cls(source, inputs, states, slice(first, stop), config.latency_steps)

    @property
    def steps(self) -> int:
        return self.rows.stop - self.rows.start - self.latency

    def chunks(self, size: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """First step, inputs and states of consecutive pieces, (sequences, steps, columns)."""
        for start in range(0, self.steps, size):
            first, stop = self.rows.start + start, self.rows.start + min(start + size, self.steps)
            inputs = self.inputs.read(first, stop)
            states = self.states.read(first + self.latency, stop + self.latency)
            yield start, np.broadcast_to(inputs, (len(states), *inputs.shape[1:])), states

    def look(self, on_steps: OnSteps) -> None:
        """Find what is broken or constant among the states; inputs must be finite."""
        self.low = np.full(len(self.states.numbers), np.inf)
        self.high = -self.low
        for start, inputs, states in self.chunks(_chunk_steps(self)):
            wrong = arrays.not_finite(inputs, arrays.NO_NUMBER)
            if wrong.any():
                _, row, column = arrays.first_true(wrong)
                raise ConfigurationError(_broken(self.inputs, self.rows.start + start + row, column, "inputs"))
            wrong = arrays.not_finite(states, arrays.NO_NUMBER)
            for column in np.flatnonzero(wrong.any(axis=(0, 1))):
                row = int(wrong[:, :, column].any(axis=0).argmax())
                self.broken.setdefault(int(column), self.rows.start + self.latency + start + row)
            self.low = np.fmin(self.low, np.fmin.reduce(states, axis=(0, 1)))
            self.high = np.fmax(self.high, np.fmax.reduce(states, axis=(0, 1)))
            self.driven = min(self.driven[0], float(inputs.min())), max(self.driven[1], float(inputs.max()))
            on_steps(states.shape[1])


def _broken(columns: Columns, row: int, column: int, what: str) -> str:
    return (
        f'{what}: {columns.place(row, column)}: not a finite number below 9e37 (by 9.9e37 instruments say "over range")'
    )


def _drop_columns(parts: list[_Part], config: MappingConfig, notes: list[str]) -> None:
    """Leave out the columns of states that are to be dropped, the same ones in all parts."""
    names = parts[0].states.names
    for part in parts[1:]:
        if list(part.states.names) != list(names):
            raise ConfigurationError(f"{part.source.path} has other columns than {parts[0].source.path}")
    broken = sorted({column for part in parts for column in part.broken})
    if broken and "nan" not in config.states.drop:
        part = next(part for part in parts if broken[0] in part.broken)
        raise ConfigurationError(
            f"{_broken(part.states, part.broken[broken[0]], broken[0], 'states')} ({len(broken)} of {len(names)} "
            "columns hold such); leave them out with `without:`, or all of them with `drop: [nan]`"
        )
    low, high = np.min([p.low for p in parts], axis=0), np.max([p.high for p in parts], axis=0)
    still = [int(column) for column in np.flatnonzero(low == high) if column not in broken]
    dropped = {"not a number somewhere": broken, "constant": still if "constant" in config.states.drop else []}
    for why, columns in dropped.items():
        if columns:
            listed = ", ".join(names[column] for column in columns)
            notes.append(f"dropped {len(columns)} of {len(names)} columns ({why}): {listed}")
    kept = [i for i in range(len(names)) if not any(i in columns for columns in dropped.values())]
    if not kept:
        raise ConfigurationError(f"states: all {len(names)} columns were dropped")
    for part in parts:
        part.states = part.states.only(kept)


@dataclass(frozen=True)
class _Scale:
    """u = low + (value - from) · gain."""

    zero: float
    gain: float
    unit: str

    @classmethod
    def of(cls, config: MappingConfig, parts: Sequence[_Part]) -> _Scale:
        unit, scale = config.inputs.unit, config.inputs.scale
        if scale is None:
            return cls(0.0, 1.0, unit)
        low, high = min(part.driven[0] for part in parts), max(part.driven[1] for part in parts)
        if scale.range != "data":
            low, high = scale.range
        if low == high:
            raise ConfigurationError(f"inputs.scale: the inputs are {low:g} throughout, so they cannot be scaled")
        gain = (scale.onto[1] - scale.onto[0]) / (high - low)
        zero = low - scale.onto[0] / gain
        return cls(zero, gain, f"{1 / gain:.6g} {unit}, 0 at {zero:.6g} {unit}")

    def apply(self, values: np.ndarray) -> np.ndarray:
        return (values - self.zero) * self.gain


def _clock(parts: Sequence[_Part], config: MappingConfig, notes: list[str]) -> dict[str, float] | None:
    """Mean, least and greatest length of a step in seconds."""
    if config.time is None:
        period = config.step_period_s
        return None if period is None else {"mean_s": period}
    steps = []
    for part in parts:
        times = part.source.times(config.time.column, "time", config.time.array)
        if len(times) != part.states.steps:
            raise ConfigurationError(
                f"time: {part.source.path} has {len(times)} times for {part.states.steps} rows of the states"
            )
        times = times[part.rows] * config.time.unit_s
        differences = np.diff(times)
        if not (differences > 0).all():
            row = int((~(differences > 0)).argmax()) + part.rows.start + 1
            raise ConfigurationError(
                f"time: {part.source.path}, row {row} (0 is the first): the time does not increase there"
            )
        steps.append(differences)
    lengths = np.concatenate(steps)
    if not len(lengths):
        raise ConfigurationError("time: a single row tells no step period")
    mean, least, most = float(lengths.mean()), float(lengths.min()), float(lengths.max())
    if most - least > _UNEVEN * mean:
        notes.append(f"the steps are uneven: {least:.4g} to {most:.4g} s, {mean:.4g} s on average")
    return {"mean_s": mean, "least_s": least, "greatest_s": most}


def _spec(
    config: MappingConfig,
    part: _Part,
    sources: Sequence[Source],
    scale: _Scale,
    clock: dict[str, float] | None,
) -> ReservoirSpec:
    # With other columns or another scale, the same data count as another device.
    reading = config.model_dump(mode="json", include={"inputs", "states", "latency_steps", "dtype"})
    content = [*(source.sha256 for source in sources), provenance.configuration_hash(reading)]
    return ReservoirSpec(
        inputs=len(part.inputs.numbers),
        nodes=len(part.states.numbers),
        identity=Identity(**config.device.model_dump(), content=" ".join(content)),
        dtype=config.dtype,
        max_batch=1,
        continuity="free_running",
        latency_steps=config.latency_steps,
        step_period_s=None if clock is None else clock["mean_s"],
        input_unit=scale.unit,
        state_unit=config.states.unit,
        input_names=tuple(part.inputs.names),
        node_names=tuple(part.states.names),
    )


def _write(store: StateStore, number: int, part: _Part, scale: _Scale, spec: ReservoirSpec, on_steps: OnSteps) -> int:
    """The number of places that were written."""
    size = _chunk_steps(part)
    dataset = store.add(
        f"{number:03d}",
        sequences=part.states.sequences,
        inputs=spec.inputs,
        nodes=spec.nodes,
        chunk_steps=size,
        steps=part.steps,
        group=min(part.states.sequences, _SEQUENCES_PER_CHUNK),
        dtype=spec.dtype,
        facts={"file": part.source.path.name, "sha256": part.source.sha256},
    )
    places = 0
    for start, inputs, states in part.chunks(size):
        for rows in slices(dataset.sequences, dataset.group):
            driven = scale.apply(inputs[rows]).astype(spec.dtype)
            place = Region(rows, start, start + driven.shape[1])
            dataset.write(place, driven, states[rows].astype(spec.dtype), timing=(np.nan, np.nan))
            places += 1
        on_steps(states.shape[1])
    return places


def _chunk_steps(part: _Part) -> int:
    sequences = min(part.states.sequences, _SEQUENCES_PER_CHUNK)
    return max(1, min(part.steps, _CHUNK_BYTES // (4 * sequences * len(part.states.numbers))))
