"""The experiment file: task, reservoir, readout, training, run, and what varies."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, create_model, model_validator

from reservoir_hw.backends.baselines.encoder_only import EncoderOnlyConfig
from reservoir_hw.core import registry
from reservoir_hw.core.axes import Dimension, Values, Vary, combinations, expand
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config, Document, Location, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.knobs import KnobConfig
from reservoir_hw.core.reservoir_config import ReservoirConfig, place_hil
from reservoir_hw.experiment.configuration.document import (
    baseline_labels,
    called,
    check_places,
    key_names,
    one_reservoir,
    unnamed,
    varied_keys,
)
from reservoir_hw.experiment.configuration.gradient import GradientConfig
from reservoir_hw.experiment.configuration.sweep import SweepConfig
from reservoir_hw.readout.baselines.configuration import BaselineConfig
from reservoir_hw.readout.configuration import GradientReadoutConfig, ReadoutConfig, StateReadoutConfig
from reservoir_hw.readout.models.configuration import TokenModelConfig
from reservoir_hw.tasks.report import DRAW
from reservoir_hw.tasks.task import Task, TaskConfig

# Which plug-in group stands behind a section with `kind:`.
SECTIONS = {"task": "tasks", "reservoir": "backends", "readout": "readouts"}


class TrainingConfig(Config):
    """How the readout's data are gathered."""

    priming_passes: NonNegativeInt = Field(
        default=0, description="passes over the training inputs before the one that is learned from"
    )
    test_warmup_steps: NonNegativeInt = Field(
        default=200, description="last training inputs that are driven, unjudged, before the test"
    )
    continuous: bool = Field(
        default=False, description="the test goes on where the training ended: no reset and no warm-up between them"
    )
    repetitions: PositiveInt = Field(
        default=1, description="how often everything is driven from rest; the readout sees the mean states"
    )
    guard_steps: NonNegativeInt | None = Field(
        default=None,
        description="all sequences in one burst, with this many rest inputs (0) between; null: a reset before each",
    )
    gradient: Annotated[GradientConfig | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, description="how a language model or a classifier is trained; it needs nothing else in here"
    )


class SampleConfig(Config):
    """A text that a trained language model writes."""

    tokens: PositiveInt = Field(default=200, description="how long it is")
    prompt: str | None = Field(default=None, description="what it continues; null: the beginning of the test")
    temperature: NonNegativeFloat = Field(default=0.8, description="0 takes the most likely token")
    top_k: PositiveInt | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: NonNegativeInt = 0
    overlap: list[PositiveInt] = Field(
        default=[], description="n-grams: metrics overlap/n, the share of them that stands in the test, too"
    )

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.overlap and max(self.overlap) > self.tokens:
            raise ValueError(f"overlap: a text of {self.tokens} tokens has no {max(self.overlap)}-grams")
        return self


class RunConfig(Config):
    """Where results go, how much is driven at once, and free text for the provenance."""

    folder: str = Field(default="runs", description="each run makes a folder of its own in here")
    name: str | None = Field(default=None, description="first part of that folder's name")
    chunk_steps: PositiveInt = Field(default=4096, description="time steps driven, learned and forgotten at once")
    states: str | None = Field(
        default="states", description="where harvested states lie; `run` takes those of the same configuration"
    )
    record: str | None = Field(default=None, description="write inputs and states of the run there, as a trace")
    draws: PositiveInt = Field(
        default=1,
        description="how often each point is driven from rest, its row apart: what differs between them is the device. "
        "All points have their first draw before any has its second",
    )
    point: NonNegativeInt | None = Field(
        default=None, description="run this point of `vary` alone, counted from 0; `run --merge` puts them together"
    )
    resume: str | None = Field(
        default=None, description="trainings by gradients: the folder of a run that was interrupted, to go on with"
    )
    generate: SampleConfig | None = Field(
        default=None, description="a text that each language model writes in the end; {} takes the defaults"
    )
    sample: str = Field(default="", description="free text: the sample on the bench")
    operator: str = Field(default="", description="free text: who ran it")
    notes: str = ""


class ExperimentConfig(Config):
    """A whole experiment. `task`, `reservoir`, `readout` and `baselines` are of the kinds that the file names."""

    title: str = ""
    task: TaskConfig
    reservoir: ReservoirConfig
    readout: ReadoutConfig
    training: TrainingConfig = TrainingConfig()
    run: RunConfig = RunConfig()
    baselines: list[BaselineConfig | ReservoirConfig | TokenModelConfig] = Field(default=[])
    vary: Vary = Field(
        default={},
        description="dotted key -> values, one result row for each point of the grid; or a list of rows, each with its "
        "keys and values. Those of the reservoir stand in `reservoir.vary`",
    )
    sweep: SweepConfig | None = Field(default=None, description="what `reservoir-hw sweep` searches")

    @property
    def trains_baselines(self) -> bool:
        """Whether a baseline is trained by gradients."""
        return any(isinstance(one, TokenModelConfig) for one in self.baselines)


@dataclass(frozen=True)
class Point:
    """One point of the grid: what varies, and the whole configuration there.

    `label` is the model's name: points that differ only in the task or in a seed share it, they are repetitions.
    `number` is its place in the grid, `task_number` that of its task among the tasks of the grid. `begins_task` says
    that no point before it has the same task: the baselines belong to it. Baselines that are reservoirs have the
    readout of the points: `own_baselines` are the numbers of those for which this is the first point with the same
    task, readout and training (and for the encoder of the device the same device).
    """

    values: Mapping[str, Any]
    config: ExperimentConfig
    label: str
    number: int = 0
    draw: int = 0
    """Which of `run.draws` drives of the same point it is."""
    task_number: int = 0
    begins_task: bool = True
    own_baselines: tuple[int, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    """What the values are called, for people."""
    by_way_of: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of each knob that varies: what it is set to before any of its values, one after the other."""

    @property
    def values_of_task(self) -> dict[str, Any]:
        """What varies the task."""
        return {key: value for key, value in self.values.items() if key.startswith("task.")}

    @property
    def name(self) -> str:
        """What is at work, for people: the reservoir, or the model where there is none."""
        readout = self.config.readout
        return self.config.reservoir.name if readout.layers_of_reservoirs else readout.label

    @property
    def place(self) -> str:
        """What varies, and how, for people."""
        return ", ".join(f"{key.rpartition('.')[2]} {self.called[key]}" for key in self.values)


def named(data: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping in which sections may be objects of configuration classes, also of a program's own, as plain values.

    Raises `ConfigurationError` as `registry.give`.
    """
    found = dict(data)
    for section, group in SECTIONS.items():
        if isinstance(found.get(section), Config):
            found[section] = _plain_section(group, found[section])
    baselines = found.get("baselines")
    if isinstance(baselines, list):
        found["baselines"] = [_plain_section("baselines", one) if isinstance(one, Config) else one for one in baselines]
    return found


def _plain_section(group: str, section: Config) -> dict[str, Any]:
    registry.give(group, type(section))
    given = section.model_dump(mode="json", serialize_as_any=True, exclude_unset=True)
    return {"kind": getattr(section, "kind"), **given}  # noqa: B009 - of any kind


def parse_experiment(document: Document) -> ExperimentConfig:
    """Validate a document; every problem names the line, option or variable it came from."""
    if "kind" in document.data:
        raise ConfigurationError(
            f"{document.origin(('kind',))}: this is a reservoir file; name an experiment file and give this one "
            "with --reservoir"
        )
    place_hil(document)
    _expand_baselines(document)
    data: dict[str, Any] = document.data
    for section in (data, data.get("reservoir"), data.get("sweep")):
        if isinstance(section, dict):
            expand(section)
    check_places(document)
    try:
        return _validated(document)
    except ConfigurationError:
        # What every point sets need not stand outside of `vary`.
        first = Document.copy_of(document)
        for key, place in varied_keys(document, at_all_points=True).items():
            values = document.at(place)
            if isinstance(place[-2], str) and not (isinstance(values, list) and values):
                raise
            value = values[0] if isinstance(place[-2], str) else values
            first.set(key, unnamed(key, value), document.origin(place))
        if first.data == document.data:
            raise
        with contextlib.suppress(ConfigurationError):
            return _validated(first)
        raise


def _validated(document: Document) -> ExperimentConfig:
    _without_reservoir(document)
    sections = {name: _kind_of(document, (name,), group) for name, group in SECTIONS.items() if name in document.data}
    config = validate(_model_of(tuple(sections.items()), tuple(_kinds_of_baselines(document))), document)
    config = config.model_copy(update={"task": config.task.for_readout(config.readout)})
    _check_own_trainings(config, document)
    return config


@cache
def _model_of(
    sections: tuple[tuple[str, type[Config]], ...], baselines: tuple[type[Config], ...]
) -> type[ExperimentConfig]:
    """The model of files whose sections and baselines are of these kinds. To make one takes longer than to use it."""
    fields: dict[str, Any] = {section: (kind, ...) for section, kind in sections}
    if baselines:
        fields["baselines"] = (list[_one_of(list(baselines))], [])
    return create_model("ExperimentConfig", __base__=ExperimentConfig, **fields)


def drop_baselines(document: Document) -> None:
    """Remove the baselines, and how they are trained where the readout is not trained so itself."""
    _expand_baselines(document)
    trained = any(issubclass(kind, TokenModelConfig) for kind in _kinds_of_baselines(document))
    document.data.pop("baselines", None)
    if trained and "readout" in document.data:
        readout: Any = _kind_of(document, ("readout",), "readouts")
        if not issubclass(readout, TokenModelConfig):
            document.data.get("training", {}).pop("gradient", None)


def trained_baselines(point: Point) -> list[Point]:
    """A point for each baseline that is trained by gradients, if this is the first point with its task."""
    config = point.config
    wanted = [
        (one, label)
        for one, label in zip(config.baselines, baseline_labels(config.baselines), strict=True)
        if isinstance(one, TokenModelConfig) and point.begins_task
    ]
    gradient = config.training.gradient
    if gradient is not None:
        # How the readout gets its states is none of their business.
        gradient = gradient.model_copy(update={"shards": None, "keep_states": False})
    return [
        Point(
            point.values_of_task,
            config.model_copy(update={"readout": baseline, "training": TrainingConfig(gradient=gradient)}),
            label,
            point.task_number * len(wanted) + number,
            called=point.called,
        )
        for number, (baseline, label) in enumerate(wanted)
    ]


def reservoir_baselines(point: Point, task: Task) -> list[Point]:
    """A point for each baseline that is a reservoir and belongs to this point: the same with that reservoir.

    Raises `ConfigurationError` for one that is not for the inputs of this task.
    """
    if not point.own_baselines:
        return []
    config = point.config
    baselines = [_of_device(one, config.reservoir) for one in config.baselines]
    if isinstance(config.readout, StateReadoutConfig):
        inputs = config.readout.channels(task)
        baselines = [one.for_inputs(inputs) if isinstance(one, ReservoirConfig) else one for one in baselines]
    labels = baseline_labels(baselines)
    run = config.run.model_copy(update={"record": None, "states": None, "draws": 1})
    found = []
    for number in point.own_baselines:
        reservoir, name = baselines[number], labels[number]
        if name != reservoir.name:
            # Of two with the same name each says what it has of its own.
            reservoir = reservoir.model_copy(update={"label": name})
        here = config.model_copy(update={"reservoir": reservoir, "run": run})
        of_device = isinstance(config.baselines[number], EncoderOnlyConfig)
        values = {key: v for key, v in point.values.items() if of_device or key.partition(".")[0] != "reservoir"}
        said = {key: point.called[key] for key in values}
        if "reservoir" in said:
            said["reservoir"] = said["reservoir"].replace(config.reservoir.name, reservoir.name)
        label = _label(here, said, key_names(point.values))
        found.append(Point(values, here, label, point.number, task_number=point.task_number, called=point.called))
    return found


def _of_device(baseline: Any, device: ReservoirConfig) -> Any:
    return baseline.of_device(device) if isinstance(baseline, EncoderOnlyConfig) else baseline


def grid(document: Document) -> list[Point]:
    """All points of `vary`, each validated, in the order of the file (of a grid, the last key turns fastest).

    With `run.point` that one alone.
    """
    points = _points(document, parse_experiment(document))
    chosen = points[0].config.run.point
    if chosen is None:
        return points
    if chosen >= len(points):
        raise ConfigurationError(
            f"{document.origin(('run', 'point'))}: run.point is {chosen}, but there are {len(points)} points, "
            f"0 to {len(points) - 1}"
        )
    return [points[chosen]]


def _points(document: Document, config: ExperimentConfig) -> list[Point]:
    if not config.vary and not config.reservoir.vary and config.task.fold_count == 1:
        return _drawn([single_point(config)])
    points: list[Point] = []
    tasks: dict[str, int] = {}
    baselines: set[tuple[Any, ...]] = set()
    rows = list(_rows(config))
    names = key_names({key for row in rows for key in row})
    values_of = [{key: value for key, (value, _) in row.items()} for row in rows]
    configs: list[ExperimentConfig] = []
    for row in rows:
        here = one_reservoir(document)
        for key, (value, place) in row.items():
            here.set(key, unnamed(key, value), document.origin(place))
        configs.append(parse_experiment(here))
        if configs[-1].reservoir.vary:
            raise ConfigurationError(
                f"{here.origin(('reservoir', 'vary'))}: one of several reservoirs does not vary itself"
            )
    by_way_of = _by_way_of(values_of, document)
    configs = [_approached(found, by_way_of) for found in configs]
    own = [{"reservoir": found.reservoir.name, "readout": found.readout.label} for found in configs]
    for values, found, said in zip(values_of, configs, called(values_of, own), strict=True):
        task = found.task.model_dump_json()
        points.append(
            Point(
                values,
                found,
                _label(found, said, names),
                len(points),
                begins_task=task not in tasks,
                task_number=tasks.setdefault(task, len(tasks)),
                own_baselines=_new_baselines(found, baselines),
                called=said,
                by_way_of=by_way_of,
            )
        )
    _refuse_equal(points, document)
    return _drawn(points)


def _by_way_of(points: Sequence[Mapping[str, Any]], document: Document) -> dict[str, tuple[float, float]]:
    """Of each knob that varies: its value that is farthest from where it is approached from, and that.

    It is approached from the lowest of its values where the file says nothing else.
    """
    section = document.data.get("reservoir")
    knobs = section.get("knobs", {}) if isinstance(section, dict) else {}
    found: dict[str, tuple[float, float]] = {}
    for key in dict.fromkeys(key for point in points for key in point if key.startswith("reservoir.knobs.")):
        name = key.removeprefix("reservoir.knobs.")
        values = [float(point[key]) for point in points if isinstance(point.get(key), int | float)]
        given = knobs[name].get("approach_from") if isinstance(knobs.get(name), dict) else None
        begin = min(values, default=0.0) if given is None else float(given)
        farthest = max(values, key=lambda value, begin=begin: abs(value - begin), default=begin)
        if farthest != begin:
            found[name] = farthest, begin
    return found


def _approached(config: ExperimentConfig, by_way_of: Mapping[str, tuple[float, float]]) -> ExperimentConfig:
    """The same with knobs that are approached from the last of the values that they go by."""
    knobs = getattr(config.reservoir, "knobs", {})
    told = {
        name: knobs[name].model_copy(update={"approach_from": values[-1]})
        for name, values in by_way_of.items()
        if isinstance(knobs.get(name), KnobConfig)
    }
    if not told:
        return config
    return config.model_copy(update={"reservoir": config.reservoir.model_copy(update={"knobs": {**knobs, **told}})})


def _drawn(points: list[Point]) -> list[Point]:
    """Each of `run.draws` drives of the points. The draws interleave them, so that drift is not taken for an effect."""
    draws = points[0].config.run.draws
    if draws == 1:
        return points
    return [
        replace(
            point,
            values={**point.values, DRAW: draw},
            called={**point.called, DRAW: str(draw)},
            number=draw * len(points) + point.number,
            draw=draw,
            begins_task=point.begins_task and not draw,
            own_baselines=() if draw else point.own_baselines,
        )
        for draw in range(draws)
        for point in points
    ]


def _refuse_equal(points: list[Point], document: Document) -> None:
    """Raise `ConfigurationError` where two points are equal but for what they are called."""
    seen: dict[str, Point] = {}
    for point in points:
        sections = {
            name: getattr(point.config, name).model_dump(mode="json", serialize_as_any=True)
            for name in ("task", "reservoir", "readout", "training")
        }
        for section in sections.values():
            section.pop("label", None)
        same = seen.setdefault(json.dumps(sections, sort_keys=True), point)
        if same is not point:
            place = ("vary",) if document.data.get("vary") else ("reservoir", "vary")
            raise ConfigurationError(
                f"{document.origin(place)}: points {same.number} and {point.number} of vary are equal "
                f"({same.place or same.label}): they would be one drive, shown as two; run.draws: N drives each point "
                "N times from rest"
            )


def _new_baselines(config: ExperimentConfig, seen: set[tuple[Any, ...]]) -> tuple[int, ...]:
    """The numbers of the baselines that are reservoirs and were not `seen` with this task, readout and training."""
    shared = [section.model_dump_json() for section in (config.task, config.readout, config.training)]
    keys = {
        (number, *shared, _of_device(baseline, config.reservoir).model_dump_json())
        for number, baseline in enumerate(config.baselines)
        if isinstance(baseline, ReservoirConfig)
    }
    new = keys - seen
    seen |= new
    return tuple(sorted(number for number, *_ in new))


def single_point(config: ExperimentConfig) -> Point:
    """That of an experiment in which nothing varies, or is not to."""
    config = config.model_copy(update={"reservoir": config.reservoir.model_copy(update={"vary": {}, "search": {}})})
    return Point({}, config, _label(config, {}, {}), own_baselines=_new_baselines(config, set()))


def _label(config: ExperimentConfig, said: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Reservoir, model and what varies, each once: most names of reservoirs and models tell their size or kind."""
    told = {"reservoir.nodes"} if not config.reservoir.label and config.readout.layers_of_reservoirs else set()
    told |= {"readout.kind"} if config.readout.label else set()
    units = {f"reservoir.knobs.{name}": f" {unit}" for name, unit in config.reservoir.knob_units.items() if unit}
    shown = [
        text if key == "readout.kind" else f"{names[key]}={text}{units.get(key, '')}"
        for key, text in said.items()
        if key not in (*SECTIONS, *told, DRAW) and not key.startswith("task.") and not key.endswith("seed")
    ]
    reservoir = said.get("reservoir", config.reservoir.name) if config.readout.layers_of_reservoirs else ""
    return " ".join(filter(None, [reservoir, said.get("readout", config.readout.label), *shown]))


def _rows(config: ExperimentConfig) -> Iterator[Values]:
    """The values of each point. A setting of a device takes long to change: the reservoir's turn slowest."""
    for own in combinations(config.reservoir.vary, ("reservoir", "vary")):
        of_reservoir = {f"reservoir.{key}": value for key, value in own.items()}
        for others in combinations(config.vary, ("vary",)):
            for fold in range(config.task.fold_count):
                of_task = {"task.fold": (fold, ("task", "folds"))} if config.task.fold_count > 1 else {}
                yield of_reservoir | others | of_task


def schema() -> dict[str, Any]:
    """JSON schema of an experiment file, with every kind that is installed."""
    fields: dict[str, Any] = {
        section: (_one_of([p.load() for p in registry.available(group).values()]), ...)
        for section, group in SECTIONS.items()
    }
    baselines = {kind: _with_seeds(plugin.load()) for kind, plugin in registry.available("baselines").items()}
    item = _one_of(list(baselines.values())) | reduce(or_, [Annotated[str, Field(pattern=f"^{k}$")] for k in baselines])
    fields["baselines"] = (list[item], [])
    search = (dict[str, Dimension | Annotated[list[Any], Field(min_length=1)]], SweepConfig.model_fields["search"])
    fields["sweep"] = (create_model("SweepConfig", __base__=SweepConfig, search=search) | None, None)
    kinds = [plugin.load() for plugin in registry.available("backends").values()]
    fields["reservoir"] = (_one_of([create_model(one.__name__, __base__=one, search=search) for one in kinds]), ...)
    fields["extends"] = (str | None, Field(default=None, description="a file that this one builds on"))
    return create_model("ExperimentConfig", __base__=ExperimentConfig, **fields).model_json_schema()


def _with_seeds(model: type[Config]) -> type[Config]:
    """Of a baseline: its seed may be several."""
    if "seed" not in model.model_fields:
        return model
    return create_model(model.__name__, __base__=model, seed=(NonNegativeInt | list[NonNegativeInt], 0))


def _kind_of(document: Document, place: tuple[str | int, ...], group: str) -> type[Config]:
    section, name = document.at(place), ".".join(map(str, place))
    if not isinstance(section, dict) or not isinstance(section.get("kind"), str):
        known = ", ".join(sorted(registry.available(group)))
        raise ConfigurationError(f"{document.origin(place)}: {name} needs `kind:`, one of: {known}")
    try:
        return registry.find(group, section["kind"]).load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{document.origin((*place, 'kind'))}: {name}: {error}") from None


def _kinds_of_baselines(document: Document) -> list[type[Config]]:
    baselines = document.data.get("baselines") or []
    return [_kind_of(document, ("baselines", number), "baselines") for number in range(len(baselines))]


def _one_of(models: list[type[Config]]) -> Any:
    distinct: Any = reduce(or_, dict.fromkeys(models))
    return distinct if isinstance(distinct, type) else Annotated[distinct, Field(discriminator="kind")]


def _check_own_trainings(config: ExperimentConfig, document: Document) -> None:
    """Raise `ConfigurationError` for a training of a readout or a baseline that is none."""
    places: list[Location] = [("readout",), *(("baselines", number) for number in range(len(config.baselines)))]
    for place, model in zip(places, [config.readout, *config.baselines], strict=True):
        if isinstance(model, GradientReadoutConfig) and model.training:
            try:
                GradientConfig.for_model(config.training.gradient, model.training)
            except ConfigurationError as error:
                origin, name = document.origin((*place, "training")), ".".join(map(str, place))
                raise ConfigurationError(f"{origin}: {name}.training: {error}") from None


def _without_reservoir(document: Document) -> None:
    """A readout that brings its own recurrence needs no section `reservoir`."""
    if "reservoir" not in document.data and "readout" in document.data:
        readout: Any = _kind_of(document, ("readout",), "readouts")
        if not readout.needs_reservoir:
            document.set("reservoir", {"kind": "none"}, document.origin(("readout",)))


def _expand_baselines(document: Document) -> None:
    """`- bigram` is short for `- kind: bigram`, and a list of seeds, or in a training, for a baseline with each."""
    baselines = document.data.get("baselines")
    if not isinstance(baselines, list):
        return
    found: list[tuple[int, Any]] = []
    for number, given in enumerate(baselines):
        one = {"kind": given} if isinstance(given, str) else given
        if isinstance(one, dict):
            training = one.get("training")
            if isinstance(training, dict):
                # Betas are a pair.
                one = {**one, "training": _each_of(training, [key for key in training if key != "betas"])}
            found += [(number, each) for each in _each_of(one, ["training", "seed"])]
        else:
            found.append((number, one))
    document.data["baselines"] = [one for _, one in found]
    before = document.origins
    document.origins = {at: origin for at, origin in before.items() if at[:1] != ("baselines",) or len(at) == 1}
    for new, (old, _) in enumerate(found):
        here = {at: origin for at, origin in before.items() if at[:2] == ("baselines", old)}
        document.origins |= {("baselines", new, *at[2:]): origin for at, origin in here.items()}


def _each_of(section: dict[str, Any], keys: Sequence[str]) -> list[dict[str, Any]]:
    """The section with each combination of the values that stand in lists under these keys."""
    lists = {key: section[key] for key in keys if isinstance(section.get(key), list) and section[key]}
    return [{**section, **dict(zip(lists, values, strict=True))} for values in itertools.product(*lists.values())]
