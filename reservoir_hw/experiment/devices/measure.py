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
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import safetensors.numpy

from reservoir_hw.backends.replay import ReplayConfig
from reservoir_hw.core import provenance
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError, DeviceError, ReservoirError, StateLost
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.store import StateStore
from reservoir_hw.core.validation import parse_budget
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import parse_experiment, single_point
from reservoir_hw.experiment.devices.measured_tables import (
    DETAILS,
    interval_text,
    nodes_table,
    number_text,
)
from reservoir_hw.experiment.devices.qualification import QUALIFICATIONS, Loop, Qualification, Settings
from reservoir_hw.experiment.run.report import complete, kept_to_the_end
from reservoir_hw.experiment.run.result import InFolder, new_run_folder
from reservoir_hw.experiment.states.progress import Progress, StepCounter
from reservoir_hw.experiment.states.watch import about_counters, counted
from reservoir_hw.measures import (
    MEASURES,
    Interval,
    Live,
    Measured,
    Nodes,
    Recorded,
    Source,
    StatesOnDisk,
    about_latency,
)
from reservoir_hw.tasks.task import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measurable: TypeAlias = "str | Path | Reservoir | Source"

Share: TypeAlias = Callable[[int, int], int]
"""Is told the fewest device steps that a suite needs, and its usual budget; says its budget."""


class Conformance(Protocol):
    """What `conform` finds: see `reservoir_hw.testing.report.Report`."""

    @property
    def passed(self) -> bool:
        """Whether nothing counts against the device."""
        ...

    @property
    def summary(self) -> str:
        """One line."""
        ...

    @property
    def against(self) -> str:
        """What counts against the device."""
        ...

    def write(self, folder: str | Path) -> None:
        """The whole report."""
        ...


class Conform(Protocol):
    """`reservoir_hw.testing.conform`: opens a device that is closed, and drives it within its share of the budget."""

    def __call__(self, config: ReservoirConfig, *, budget: Share, progress: Progress | None) -> Conformance:
        """Look whether the device does what it declares."""
        ...


_WASHOUT = 200
_FEWEST_REPEATS, _SHORTEST = 2, 1000
_PARTS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
_CONFORMANCE = "conformance"
_VERDICT = ("outcome", "found")
_UNCHECKED = ("unchecked", "Nobody has looked whether the device does what it declares: the suite was left out.")

TITLES = {**MEASURES, **QUALIFICATIONS}
"""What tables call each measure."""


@dataclass(kw_only=True)
class MeasureResult(InFolder):
    """What was measured, by the names of `MEASURES` or `QUALIFICATIONS`, and why the rest could not be.

    `conformance` of a qualification says what the conformance suite found, or that it was left out; None elsewhere.
    `nodes` says what each node did, where a drive was repeated.
    """

    measured: dict[str, Measured] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    conformance: tuple[str, str] | None = None
    nodes: Nodes | None = None

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
            **({} if self.nodes is None else {"nodes": self.nodes.as_dict()}),
            **({} if self.conformance is None else {"conformance": dict(zip(_VERDICT, self.conformance, strict=True))}),
        }

    def tables(self) -> list[Table]:
        """All measures with their intervals, and capacities by delay and degree."""
        rows = [] if self.conformance is None else [["conformance suite", self.conformance[0], "", self.conformance[1]]]
        for name, title in TITLES.items():
            if name in self.measured:
                result = self.measured[name]
                rows.append([title, number_text(result.value), interval_text(result.interval), result.note])
            elif name in self.reasons:
                rows.append([title, "not measured", "", self.reasons[name]])
        confidence = next((f"{result.interval.confidence:.0%}" for result in self.rows), "")
        note = "metrics.json says for each interval how it was found; measures.safetensors holds what the figures show."
        tables = [Table(self.title, ["measure", "value", f"{confidence} interval".strip(), "remark"], rows, note)]
        tables += [DETAILS[name](self.measured[name]) for name in self.measured if name in DETAILS]
        return tables if self.nodes is None else [*tables, nodes_table(self.nodes)]

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
    conform: Conform | None = None,
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
        Longest delay of the capacities; by default twice the number of nodes, but at most a tenth of the steps.
    axes
        Of the operating map, with their values: `amplitude`, `bias`, `hold`, or keys of the file such as
        `reservoir.leak_rate`.
    budget
        Device steps ("20000"), or a time ("20m") where the device declares its step period, that a live device may be
        driven in all: fewer repeats are taken, then a shorter long drive.
    conform
        `reservoir_hw.testing.conform`: with `qualify`, the device of a file has to pass it first, within the same
        budget. Its report is in the folder `conform` of the result. None: the result says that nobody has looked.
    on_plan
        Is told how many steps a live device will be driven, and for how long, before it is.

    What cannot be measured is in `reasons`. A device fault or Ctrl-C ends it; what was finished is in the folder, and
    the error goes on to the caller. Raises `ConfigurationError` for an unknown measure or file, for a reservoir file
    of kind replay, a budget that is too small, a device that does not conform, and where nothing at all could be
    measured; all but the last two before anything is driven.
    """
    names = measures_named(only, QUALIFICATIONS if qualify else MEASURES)
    driving: dict[str, Any] = {"steps": steps, "repeats": repeats, "input_range": input_range, "seed": seed}
    settings = {**driving, "washout": washout, "max_delay": max_delay, "only": names}
    if axes:
        settings["axes"] = dict(axes)
    if axes and "operating_map" not in names:
        raise ConfigurationError("the axes of a map belong to the operating map, which is not among what is measured")
    if budget is not None:
        parse_budget(budget)
    counter = StepCounter(progress)
    options: dict[str, Any] = {"washout": washout, "max_delay": max_delay, "on_steps": counter.add}
    asked = Settings(axes=axes or {}) if qualify else None
    with _opened(source, reservoir, set, options, driving, asked) as found:
        name = found.name
        if found.make is None and (axes or budget):
            raise ConfigurationError(f"{name} is not driven: a budget and the axes of a map belong to a device")
        impossible = _impossible(found.source, names) if qualify else {}
        names = [name for name in names if name not in impossible]
        if not names:
            raise ConfigurationError(_nothing_measured(name, impossible))
        opened, report = found.source, None
        if found.make is not None:
            suite = conform if qualify else None
            say = on_plan or (lambda plan: None)
            openings = 0 if found.config is None else 1 if suite is None else 2
            planner = _Planner(found.make, names, budget, driving, openings)
            if suite is not None:
                opened, report = _conforming(found.config, planner, suite, say, progress)
            else:
                plan = planner.plan()
                opened = plan.live
                say(plan.text)
        result = MeasureResult(
            title=f"{'Qualification' if qualify else 'Measures'} of {name}",
            folder=new_run_folder(folder, f"measure-{Path(name).name}"),
            provenance={**provenance.collect(found.resolved), "measure": settings, "rows": found.rows()},
            reasons=impossible,
        )
        if report is not None:
            report.write(result.folder / _CONFORMANCE)
            result.conformance = ("passed", f"{report.summary}. The folder {_CONFORMANCE} has the report.")
        elif found.make is not None and qualify:
            result.conformance = _UNCHECKED
        result.save()
        with kept_to_the_end(result, lambda: bool(result.measured)):
            driven = opened.planned_steps(names)
            opening = opened.opening_steps if isinstance(opened, Live) and found.config is not None else 0
            counter.total = driven + opening if driven else len(names)
            counter.add(opening)
            for one in names:
                take(opened, one, counter, result.measured, result.reasons)
                result.save()
                counter.add(0 if driven else 1)
            result.nodes, late = opened.nodes_seen(), opened.latency_seen()
            remarks = [] if result.nodes is None else result.nodes.sentences()
            remarks += [about_latency(late)] if late else []
            if isinstance(opened, Live):
                total = counted({"counters": one.as_dict()} for one in opened.counters)
                remarks += about_counters(total, opened.reservoir.spec)
            result.warn(*remarks)
            if not result.measured:
                raise ConfigurationError(_nothing_measured(name, result.reasons))
            result.provenance["rows"] = found.rows()
            counter.say("writing the report")
            complete(result)
    return result


def _impossible(source: Source, names: Iterable[str]) -> dict[str, str]:
    """Why some qualifications cannot be taken, known before anything is driven."""
    if isinstance(source, Qualification):
        return {name: reason for name in names if (reason := source.cannot(name))}
    reason = "it needs the file of a device, or an open reservoir"
    if isinstance(source, Recorded):
        reason = "not measurable from this recording: it needs a device that answers"
    return {name: reason for name in names if not hasattr(source, name)}


@dataclass(frozen=True)
class _Plan:
    """A device with how it will be driven, the steps that the conformance suite may take, and both in words."""

    live: Live
    suite: int
    text: str


class _Planner:
    """The ways to drive a device, from the best to the least, and the one that a budget allows.

    Raises `ConfigurationError` for a budget in time where no pace is declared. Nothing is driven.
    """

    def __init__(
        self, make: _Making, names: list[str], budget: str | None, driving: dict[str, Any], openings: int
    ) -> None:
        live = make()
        self.reservoir = live.reservoir
        self._budget, self._period, self._most = budget, live.reservoir.spec.step_period_s, math.inf
        if budget is not None:
            steps, seconds = parse_budget(budget)
            if steps is None and not self._period:
                raise ConfigurationError(
                    f"the budget {budget} is a time, but {live.reservoir.name} declares no step_period_s: give it in "
                    "device steps, for instance 200000"
                )
            self._most = steps or (seconds or 0.0) / (self._period or 1.0)
        long = driving["steps"]
        shortest = min(long, max(_SHORTEST, live.fewest_steps))
        tried = [(repeats, long) for repeats in range(driving["repeats"], _FEWEST_REPEATS, -1)]
        tried += [(_FEWEST_REPEATS, max(shortest, round(long * part))) for part in _PARTS]
        self._ways: list[tuple[Live, int, str]] = []
        for repeats, steps in tried:
            live = make(**{**driving, "repeats": repeats, "steps": steps})
            fewer = f"with {repeats} repeats, and {steps:,} steps at most" if self._ways else ""
            self._ways.append((live, live.planned_steps(names) + openings * live.opening_steps, fewer))

    def plan(self, fewest: int = 0, usual: int = 0) -> _Plan:
        """The best way, beside a conformance suite that needs `fewest` device steps, and has `usual` ones as a rule.

        Raises `ConfigurationError` for a budget that even the least do not fit into.
        """
        least = self._ways[-1][1]
        suite = max(fewest, int(min(usual, self._most - least)))
        for live, own, fewer in self._ways:
            if own + suite <= self._most:
                beside = f"at most {suite:,} of the conformance suite, then {own:,}" if suite else ""
                said = "; ".join(filter(None, [beside, fewer]))
                return _Plan(live, suite, self._text(own + suite, f" ({said})" if said else ""))
        of_suite = f" ({fewest:,} of them for the conformance suite)" if fewest else ""
        raise ConfigurationError(
            f"the budget {self._budget} is too small: at least {self._text(least + fewest, of_suite)} are needed; take "
            "fewer measures (only)"
        )

    def _text(self, steps: int, more: str) -> str:
        took = f", about {timedelta(seconds=math.ceil(steps * self._period))}" if self._period else ""
        return f"{steps:,} device steps{more}{took}"


def _conforming(
    config: ReservoirConfig | None,
    planner: _Planner,
    conform: Conform,
    on_plan: Callable[[str], None],
    progress: Progress | None,
) -> tuple[Live, Conformance]:
    """The device of a file, once the conformance suite has passed it, and the report of the suite.

    One plan says what both will take, before either drives the device. Raises `ConfigurationError` where something
    counts against the device.
    """
    if config is None:
        raise ConfigurationError("the conformance suite opens the device by itself: give a file, and no open reservoir")
    plans: list[_Plan] = []

    def share(fewest: int, usual: int) -> int:
        plans.append(planner.plan(fewest, usual))
        on_plan(plans[0].text)
        return plans[0].suite

    # Only one can have the device.
    planner.reservoir.close()
    report = conform(config, budget=share, progress=progress)
    if not report.passed:
        raise ConfigurationError(
            f"the device does not conform, so it is not qualified: {report.against}. `reservoir-hw conform` says more; "
            "--unchecked qualifies it all the same"
        )
    planner.reservoir.open()
    return plans[0].live, report


def take(
    source: Source, name: str, counter: StepCounter, measured: dict[str, Measured], reasons: dict[str, str]
) -> None:
    """Put a measure into `measured`, or why it could not be taken into `reasons`. Device faults go on to the caller."""
    counter.say(TITLES[name])
    try:
        measured[name] = getattr(source, name)()
    except (DeviceError, StateLost):
        raise
    except ReservoirError as error:
        recorded = isinstance(source, Recorded) and name in QUALIFICATIONS
        reasons[name] = f"not measurable from this recording: {error}" if recorded else str(error)


_Making: TypeAlias = Callable[..., Live]


@dataclass(frozen=True)
class _Opened:
    """What is measured. `rows` says what is known of the device by now, `resolved` is the whole configuration.

    Of a device, `make` makes other sources, of what else is to be said of its drives; of one in a file, `config` is its
    section.
    """

    name: str
    source: Source
    rows: Callable[[], list[dict[str, Any]]]
    resolved: Any
    make: _Making | None = None
    config: ReservoirConfig | None = None


@contextlib.contextmanager
def _opened(
    source: Measurable,
    reservoir: str | Path | None,
    set: Mapping[str, Any] | Iterable[str] | None,
    options: dict[str, Any],
    driving: dict[str, Any],
    asked: Settings | None,
) -> Iterator[_Opened]:
    """What is measured, open. With `asked` a device is qualified.

    Raises `ConfigurationError` for settings that cannot be.
    """
    if isinstance(source, Source):
        yield _Opened(type(source).__name__.lower(), source, list, {})
        return
    if not isinstance(source, Reservoir) and ("://" in str(source) or Path(source).is_dir()):
        if reservoir is not None or set:
            raise ConfigurationError(f"{source} is a trace: there is no reservoir to replace and nothing to set")
        store = StateStore.open(source)
        recorded = recorded_source(store, options["washout"], options["max_delay"])
        yield _Opened(str(source), recorded, lambda: [_device_of(store)], {"trace": str(source)})
        return
    config: ReservoirConfig | None = None
    if isinstance(source, Reservoir):
        name, device, of = "reservoir", source, asked
        opening = contextlib.nullcontext()
    else:
        name, config, of = _configured(source, reservoir, set, asked)
        opening = device = build_reservoir(config)
    with opening:
        options = {**driving, **options, "washout": _WASHOUT if options["washout"] is None else options["washout"]}
        make = partial(Live, device, **options) if of is None else partial(Qualification, device, of, **options)
        yield _Opened(
            name,
            make(),
            lambda: [{"label": name, "reservoir": device.provenance()}],
            {} if config is None else {"reservoir": config.model_dump(mode="json")},
            make,
            config,
        )


def _configured(
    path: str | Path,
    reservoir: str | Path | None,
    set: Mapping[str, Any] | Iterable[str] | None,
    asked: Settings | None,
) -> tuple[str, ReservoirConfig, Settings | None]:
    """Name and reservoir of a file, and `asked` with what the file says."""
    document = load_document(path, reservoir=reservoir, set=set)
    if "task" in document.data:
        experiment = parse_experiment(document)
        _refuse_replay(path, experiment.reservoir)
        task = experiment.task.build()
        channels = experiment.readout.channels(task)
        config = single_point(experiment).config.reservoir.for_inputs(channels)
        looped = task.closed_loop and experiment.readout.trained == "in one pass"
        loop = Loop(single_point(experiment), task) if looped else None
        told: dict[str, Any] = {"channels": channels, "vary": _varied(experiment.reservoir), "loop": loop}
    else:
        config = parse_reservoir(document, varies=True)
        told = {"vary": _varied(config)}
        config = config.model_copy(update={"vary": {}})
        _refuse_replay(path, config)
        if config.inputs is None or isinstance(config.input_mask, MaskConfig):
            config = config.for_inputs(1)
        told["channels"] = Channels(config.inputs or 1)
    return Path(path).stem, config, None if asked is None else dataclasses.replace(asked, document=document, **told)


def _varied(config: ReservoirConfig) -> dict[str, list[float]]:
    """Numbers that the reservoir varies, other than what makes it another device."""
    if not isinstance(config.vary, dict):
        return {}
    return {
        f"reservoir.{key}": list(values)
        for key, values in config.vary.items()
        if key not in ("seed", "nodes")
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
