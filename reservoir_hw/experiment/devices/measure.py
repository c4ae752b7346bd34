"""What a device or a trace is worth: all measures that can be taken of it, in a folder of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import safetensors.numpy

from reservoir_hw.backends.replay import ReplayConfig
from reservoir_hw.core import provenance
from reservoir_hw.core.budget import parse_budget
from reservoir_hw.core.errors import ConfigurationError, DeviceError, ReservoirError, StateLost
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import ExperimentConfig, parse_experiment, single_point
from reservoir_hw.experiment.devices.measured_tables import DETAILS, interval_text, number_text
from reservoir_hw.experiment.devices.qualification import QUALIFICATIONS, Loop, Qualification, Settings
from reservoir_hw.experiment.run.folder import new_run_folder
from reservoir_hw.experiment.run.report import write_report
from reservoir_hw.experiment.run.result import InFolder, how_it_ended
from reservoir_hw.experiment.states.pace import may_be_frozen, measured_pace
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.measures import (
    MEASURES,
    Interval,
    Live,
    Measured,
    Recorded,
    Source,
    StatesOnDisk,
)
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measurable: TypeAlias = "str | Path | Reservoir | Source"

_WASHOUT = 200
_PACE_STEPS = 4096
_FEWEST_REPEATS, _SHORTEST = 2, 1000

TITLES = {**MEASURES, **QUALIFICATIONS}
"""What tables call each measure."""


@dataclass(kw_only=True)
class MeasureResult(InFolder):
    """What was measured, by the names of `MEASURES` or `QUALIFICATIONS`, and why the rest could not be."""

    measured: dict[str, Measured] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[Measured]:
        """The results without their names."""
        return list(self.measured.values())

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers, ready for JSON: null for what is infinite or missing."""
        return {
            **super().metrics,
            "measures": {name: plain(vars(result)) for name, result in self.measured.items()},
            "not_measured": self.reasons,
        }

    def tables(self) -> list[Table]:
        """All measures with their intervals, and capacities by delay and degree."""
        rows = []
        for name, title in TITLES.items():
            if name in self.measured:
                result = self.measured[name]
                rows.append([title, number_text(result.value), interval_text(result.interval), result.note])
            elif name in self.reasons:
                rows.append([title, "not measured", "", self.reasons[name]])
        confidence = next((f"{result.interval.confidence:.0%}" for result in self.rows), "")
        note = "metrics.json says for each interval how it was found; measures.safetensors holds what the figures show."
        tables = [Table(self.title, ["measure", "value", f"{confidence} interval".strip(), "remark"], rows, note)]
        return [*tables, *(DETAILS[name](self.measured[name]) for name in self.measured if name in DETAILS)]

    def figures(self) -> dict[str, Figure]:
        """A figure for each measure. Needs the `report` extra."""
        from reservoir_hw.measures.figures import figures

        return figures(self.measured)

    def save(self) -> None:
        """Write metrics.json, measures.safetensors and provenance.json; done after every measure."""
        super().save()
        arrays = {
            f"{name}.{key}": np.ascontiguousarray(value)
            for name, result in self.measured.items()
            for key, value in vars(result).items()
            if isinstance(value, np.ndarray)
        }
        replace_file(self.folder / "measures.safetensors", safetensors.numpy.save(arrays))


def measure(
    source: Measurable,
    *,
    reservoir: str | Path | None = None,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    only: Iterable[str] | None = None,
    steps: int = 20_000,
    washout: int | None = None,
    repeats: int = 10,
    max_delay: int | None = None,
    input_range: tuple[float, float] | None = None,
    seed: int = 0,
    qualify: bool = False,
    axes: Mapping[str, Sequence[float]] | None = None,
    folder: str | Path = "runs",
    budget: str | None = None,
    on_plan: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> MeasureResult:
    """Take all measures, or those named by `only`, and write them into a new folder in `folder`.

    With `qualify` these are the `QUALIFICATIONS` instead: what a device is good for, and where it is lost.

    Parameters
    ----------
    source
        An experiment or reservoir file, the path of a trace, an open reservoir, or a `Source` of your own, for instance
        `Recorded((inputs, states))`.
    reservoir, set
        As for an experiment: a reservoir file that replaces the section, and single values.
    steps, repeats, input_range, seed
        How a live device is driven: see `measures.Live`. A trace has what it has.
    washout
        First steps that do not count; by default 200, or a tenth of a short trace.
    max_delay
        Longest delay of the capacities; by default twice the number of nodes.
    axes
        Of the operating map, with their values: `amplitude`, `bias`, `hold`, or keys of the file such as
        `reservoir.leak_rate`.
    budget
        Device steps ("20000") or a time ("20m") that a live device may be driven: fewer repeats are taken, then a
        shorter long drive.
    on_plan
        Is told how many steps a live device will be driven, and for how long, before it is.

    What cannot be measured is in `reasons`. A device fault or Ctrl-C ends it; what was finished is in the folder, and
    the error goes on to the caller. Raises `ConfigurationError` for an unknown measure or file, for a reservoir file
    of kind replay, and where nothing at all could be measured.
    """
    names = measures_named(only, QUALIFICATIONS if qualify else MEASURES)
    driving: dict[str, Any] = {"steps": steps, "repeats": repeats, "input_range": input_range, "seed": seed}
    settings = {**driving, "washout": washout, "max_delay": max_delay, "only": names}
    if axes:
        settings["axes"] = dict(axes)
    counter = StepCounter(progress)
    options: dict[str, Any] = {"washout": washout, "max_delay": max_delay, "on_steps": counter.add}
    asked = Settings(axes=axes or {}) if qualify else None
    with _opened(source, reservoir, set, options, driving, asked) as (name, opened, device, resolved):
        impossible = {} if not qualify else _impossible(opened, names)
        names = [name for name in names if name not in impossible]
        if not names:
            raise ConfigurationError(_nothing_measured(name, impossible))
        result = MeasureResult(
            title=f"Measures of {name}",
            folder=new_run_folder(folder, f"measure-{Path(name).name}"),
            provenance={**provenance.collect(resolved), "measure": settings, "rows": device()},
            reasons=impossible,
        )
        result.save()
        try:
            if not isinstance(opened, Source):
                opened, plan = _within_budget(opened, names, budget, driving)
                if on_plan is not None:
                    on_plan(plan)
            driven = opened.planned_steps(names)
            counter.total = driven or len(names)
            for measured, found in taken(opened, names, counter):
                if isinstance(found, Measured):
                    result.measured[measured] = found
                else:
                    result.reasons[measured] = found
                result.save()
                counter.add(0 if driven else 1)
            if not result.measured:
                raise ConfigurationError(_nothing_measured(name, result.reasons))
            result.provenance["rows"] = device()
            result.status = "complete"
            counter.say("writing the report")
            write_report(result)
            result.save()
        except BaseException as error:
            result.status, result.problem = how_it_ended(error)
            # The error itself goes on to the caller; a full disk must not hide it.
            with contextlib.suppress(Exception):
                result.save()
                if result.measured:
                    write_report(result)
            raise
    return result


def check_qualification(
    source: Measurable,
    *,
    reservoir: str | Path | None = None,
    set: Mapping[str, Any] | Iterable[str] | None = None,
    only: Iterable[str] | None = None,
    input_range: tuple[float, float] | None = None,
    axes: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Raise `ConfigurationError` where `measure(..., qualify=True)` would be refused. The device is not driven."""
    names = measures_named(only, QUALIFICATIONS)
    driving = {"steps": _SHORTEST, "repeats": _FEWEST_REPEATS, "input_range": input_range, "seed": 0}
    options: dict[str, Any] = {"washout": None, "max_delay": None}
    with _opened(source, reservoir, set, options, driving, Settings(axes=axes or {})) as (name, opened, _, _):
        impossible = _impossible(opened, names)
        if len(impossible) == len(names):
            raise ConfigurationError(_nothing_measured(name, impossible))


def _impossible(opened: Source | _Making, names: Iterable[str]) -> dict[str, str]:
    """Why some qualifications cannot be taken, known before anything is driven."""
    source = opened if isinstance(opened, Source) else opened()
    if isinstance(source, Qualification):
        return {name: reason for name in names if (reason := source.cannot(name))}
    return {
        name: "not measurable from this recording: it needs a device that answers"
        for name in names
        if not hasattr(source, name)
    }


def _within_budget(make: _Making, names: list[str], budget: str | None, driving: dict[str, Any]) -> tuple[Live, str]:
    """The device with as many repeats and steps as the budget allows, and what that will take in words.

    Raises `ConfigurationError` for a budget that even the fewest do not fit into.
    """
    device = make().reservoir
    spec = device.spec
    low, high = driving["input_range"] or spec.input_range or (-1.0, 1.0)
    u = generator(0, "pace").uniform(low, high, (1, _PACE_STEPS, spec.inputs)).astype(spec.dtype)
    steps, seconds = (None, None) if budget is None else parse_budget(budget)
    pace = 1 / spec.step_period_s if spec.step_period_s else None
    # The noise of a simulation may depend on every drive, so it is driven for its pace only if that is needed.
    if pace is None and (seconds or not may_be_frozen(spec)):
        pace = measured_pace(device, u)
    most = math.inf if budget is None else steps or (seconds or 0.0) * (pace or 0.0)
    long = driving["steps"]
    tried = [(repeats, long) for repeats in range(driving["repeats"], _FEWEST_REPEATS - 1, -1)]
    tried += [(_FEWEST_REPEATS, max(_SHORTEST, round(long * part))) for part in (0.7, 0.5, 0.35, 0.25, 0.15, 0.1)]
    planned = 0
    for repeats, shorter in tried:
        options = {**driving, "repeats": repeats, "steps": min(long, shorter)}
        live = make(**options)
        planned = live.planned_steps(names)
        if planned <= most:
            fewer = "" if options == driving else f" (with {repeats} repeats, and {options['steps']:,} steps at most)"
            return live, f"{planned:,} device steps{fewer}{_duration(planned, pace)}"
    raise ConfigurationError(
        f"the budget {budget} is too small: at least {planned:,} device steps are needed{_duration(planned, pace)}; "
        "take fewer measures (only)"
    )


def _duration(steps: int, pace: float | None) -> str:
    return "" if pace is None else f", about {timedelta(seconds=math.ceil(steps / pace))}"


def taken(source: Source, names: Iterable[str], counter: StepCounter) -> Iterator[tuple[str, Measured | str]]:
    """Each measure with its result, or the reason why it could not be taken. Device faults go on to the caller."""
    for name in names:
        counter.say(TITLES[name])
        try:
            found = getattr(source, name)()
        except (DeviceError, StateLost):
            raise
        except ReservoirError as error:
            found = str(error)
            if isinstance(source, Recorded) and name in QUALIFICATIONS:
                found = f"not measurable from this recording: {found}"
        yield name, found


_Making: TypeAlias = Callable[..., Live]
_Opened: TypeAlias = tuple[str, Source | _Making, Callable[[], list[dict[str, Any]]], Any]


@contextlib.contextmanager
def _opened(
    source: Measurable,
    reservoir: str | Path | None,
    set: Mapping[str, Any] | Iterable[str] | None,
    options: dict[str, Any],
    driving: dict[str, Any],
    asked: Settings | None,
) -> Iterator[_Opened]:
    """Name, source, what is known of the device by now, and the resolved configuration.

    A device is not yet a source: what makes one of it takes what else is to be said of its drives. With `asked` it is
    one that qualifies it.
    """
    washout, max_delay = options["washout"], options["max_delay"]
    if isinstance(source, Source):
        yield type(source).__name__.lower(), source, list, {}
        return
    if not isinstance(source, Reservoir) and ("://" in str(source) or Path(source).is_dir()):
        if reservoir is not None or set:
            raise ConfigurationError(f"{source} is a trace: there is no reservoir to replace and nothing to set")
        store = StateStore.open(source)
        yield (
            str(source),
            recorded_source(store, washout, max_delay),
            lambda: [_device_of(store)],
            {"trace": str(source)},
        )
        return
    if isinstance(source, Reservoir):
        name, config, device, of = "reservoir", {}, source, asked
        opening = contextlib.nullcontext()
    else:
        name, config, device, of = _built(source, reservoir, set, asked)
        opening = device
    with opening:
        options = {**driving, **options, "washout": _WASHOUT if washout is None else washout}
        make = partial(Live, device, **options)
        if of is not None:
            make = partial(Qualification, device, of, **options)
        # Settings that cannot be are refused before there is a folder.
        make()
        yield name, make, lambda: [{"label": name, "reservoir": device.provenance()}], config


def _built(
    path: str | Path,
    reservoir: str | Path | None,
    set: Mapping[str, Any] | Iterable[str] | None,
    asked: Settings | None,
) -> tuple[str, Any, Reservoir, Settings | None]:
    """Name, resolved configuration and reservoir, not yet open, of a file, and `asked` with what the file says."""
    document = load_document(path, reservoir=reservoir, set=set)
    if "task" in document.data:
        experiment = parse_experiment(document)
        _refuse_replay(path, experiment.reservoir)
        task = experiment.task.build()
        inputs = experiment.readout.input_channels(task)
        config = experiment.reservoir.for_inputs(inputs)
        if asked is not None:
            looped = task.closed_loop and experiment.readout.trained == "in one pass"
            asked = dataclasses.replace(
                asked,
                document=document,
                channels=inputs,
                vary=_varied(experiment),
                loop=Loop(single_point(experiment), task) if looped else None,
            )
    else:
        config = parse_reservoir(document)
        _refuse_replay(path, config)
        if config.inputs is None or config.input_mask is not None:
            config = config.for_inputs(1)
        if asked is not None:
            asked = dataclasses.replace(asked, document=document, channels=config.inputs or 1)
    return Path(path).stem, {"reservoir": config.model_dump(mode="json")}, build_reservoir(config), asked


def _varied(experiment: ExperimentConfig) -> dict[str, list[float]]:
    """Numbers of the reservoir that the file varies, other than what makes it another device."""
    if not isinstance(experiment.vary, dict):
        return {}
    return {
        key: list(values)
        for key, values in experiment.vary.items()
        if key.startswith("reservoir.")
        and key not in ("reservoir.seed", "reservoir.nodes")
        and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    }


def _refuse_replay(path: str | Path, config: ReservoirConfig) -> None:
    if isinstance(config, ReplayConfig):
        raise ConfigurationError(
            f"{path}: the reservoir is a replay, which answers only the inputs that were recorded, while measures "
            f"drive a device with inputs of their own. Measure the trace itself: reservoir-hw measure {config.trace}"
        )


def _nothing_measured(name: str, reasons: Mapping[str, str]) -> str:
    distinct = set(reasons.values())
    if len(distinct) == 1:
        return f"nothing could be measured of {name}: {distinct.pop()}"
    lines = [f"{TITLES[measured]}: {reason}" for measured, reason in reasons.items()]
    return "\n  ".join([f"nothing could be measured of {name}", *lines])


def recorded_source(store: StateStore, washout: int | None, max_delay: int | None) -> Recorded:
    """The sequences of a trace, as far as they were written."""
    pairs = []
    for dataset in store.datasets.values():
        inputs = dataset.read_inputs(slice(0, dataset.sequences), 0, dataset.steps)
        missing = np.asarray(np.isnan(inputs).any(axis=2))
        written = np.where(missing.any(axis=1), missing.argmax(axis=1), dataset.steps)
        whole = np.flatnonzero(written == written.max(initial=0))
        if dataset.steps and written.max(initial=0):
            pairs.append((inputs[whole, : written.max()], StatesOnDisk(dataset.states, whole, int(written.max()))))
    if not pairs:
        raise ConfigurationError(f"{store.path} holds no states yet")
    longest = max(inputs.shape[1] for inputs, _ in pairs)
    return Recorded(*pairs, washout=min(_WASHOUT, longest // 10) if washout is None else washout, max_delay=max_delay)


def _device_of(store: StateStore) -> dict[str, Any]:
    """The record of the device that a trace is of."""
    recorded = store.facts["provenance"].get("reservoir", {})
    return {"label": store.path, "reservoir": {"identity": store.facts["spec"]["identity"], **recorded}}


def measures_named(only: Iterable[str] | None, among: Mapping[str, str] = MEASURES) -> list[str]:
    """The names of measures that are wanted, in the order of `among`."""
    wanted = list(only or among)
    for name in wanted:
        if name not in among:
            more = " (with qualify)" if name in QUALIFICATIONS else " (without qualify)" if name in MEASURES else ""
            raise ConfigurationError(f"there is no measure {name!r}{more}; there are: {', '.join(among)}")
    return [name for name in among if name in wanted]


def plain(value: Any) -> Any:
    """What JSON can hold; arrays are left to measures.safetensors."""
    if isinstance(value, Interval):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items() if not isinstance(entry, np.ndarray)}
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
