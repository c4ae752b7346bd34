"""From the name in `kind:` to the configuration class that stands behind it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.words import did_you_mean

# Third parties add to these by the entry point groups `reservoir_hw.backends`, `.readouts`, and so on.
BUILT_IN: dict[str, dict[str, str]] = {
    "backends": {
        "commands": "reservoir_hw.backends.commands.reservoir:CommandsConfig",
        "delay_loop": "reservoir_hw.backends.simulated.delay_loop.delay_loop:DelayLoopConfig",
        "encoder_only": "reservoir_hw.backends.baselines.encoder_only:EncoderOnlyConfig",
        "esn": "reservoir_hw.backends.simulated.esn.esn:EsnConfig",
        "gated_esn": "reservoir_hw.backends.simulated.gated.gated_esn:GatedEsnConfig",
        "laerc_layers": "reservoir_hw.backends.layered:LaercReservoirsConfig",
        "layers": "reservoir_hw.backends.layered:LayersConfig",
        "none": "reservoir_hw.backends.layered:NoReservoirConfig",
        "nvar": "reservoir_hw.backends.baselines.nvar:NvarConfig",
        "parallel": "reservoir_hw.backends.parallel:ParallelConfig",
        "python": "reservoir_hw.backends.python.reservoir:PythonConfig",
        "replay": "reservoir_hw.backends.replay:ReplayConfig",
        "serial": "reservoir_hw.backends.serial:SerialConfig",
        "visa": "reservoir_hw.backends.visa.reservoir:VisaConfig",
        "volterra": "reservoir_hw.backends.baselines.nvar:VolterraConfig",
        "zmq": "reservoir_hw.backends.zeromq:ZmqConfig",
    },
    "readouts": {
        "attention": "reservoir_hw.readout.models.configuration:AttentionModelConfig",
        "esn_lm": "reservoir_hw.readout.models.configuration:EsnLmConfig",
        "laerc": "reservoir_hw.readout.models.configuration:LaercConfig",
        "gates": "reservoir_hw.readout.models.classifier_configuration:GatesConfig",
        "gru": "reservoir_hw.readout.models.classifier_configuration:TrainedGruConfig",
        "linear": "reservoir_hw.readout.models.configuration:LinearModelConfig",
        "lms": "reservoir_hw.readout.linear.online:LmsConfig",
        "low_rank": "reservoir_hw.readout.models.configuration:LowRankModelConfig",
        "ridge": "reservoir_hw.readout.linear.ridge:RidgeConfig",
        "rls": "reservoir_hw.readout.linear.online:RlsConfig",
        "sklearn": "reservoir_hw.readout.own.configuration:SklearnConfig",
        "torch": "reservoir_hw.readout.own.configuration:TorchConfig",
    },
    "tasks": {
        "channel_equalisation": "reservoir_hw.tasks.channel_equalisation:ChannelEqualisationConfig",
        "data": "reservoir_hw.tasks.data.task:DataConfig",
        "elman_grammar": "reservoir_hw.tasks.elman_grammar.task:ElmanGrammarConfig",
        "henon": "reservoir_hw.tasks.henon:HenonConfig",
        "japanese_vowels": "reservoir_hw.tasks.japanese_vowels:JapaneseVowelsConfig",
        "kuramoto_sivashinsky": "reservoir_hw.tasks.kuramoto_sivashinsky:KuramotoSivashinskyConfig",
        "lorenz": "reservoir_hw.tasks.lorenz:LorenzConfig",
        "mackey_glass": "reservoir_hw.tasks.mackey_glass:MackeyGlassConfig",
        "memory_recall": "reservoir_hw.tasks.memory_recall:MemoryRecallConfig",
        "narma": "reservoir_hw.tasks.narma:NarmaConfig",
        "parity": "reservoir_hw.tasks.parity:ParityConfig",
        "santa_fe": "reservoir_hw.tasks.santa_fe:SantaFeConfig",
        "sine_square": "reservoir_hw.tasks.sine_square:SineSquareConfig",
        "text": "reservoir_hw.tasks.text.task:TextConfig",
        "trace": "reservoir_hw.tasks.trace:TraceConfig",
        "trec": "reservoir_hw.tasks.trec:TrecConfig",
        "validation": "reservoir_hw.tasks.validation:ValidationConfig",
    },
    "baselines": {
        "bigram": "reservoir_hw.readout.baselines.ngram:BigramConfig",
        "encoder_only": "reservoir_hw.backends.baselines.encoder_only:EncoderOnlyConfig",
        "esn": "reservoir_hw.backends.simulated.esn.esn:EsnConfig",
        "fir": "reservoir_hw.readout.baselines.fir:FirConfig",
        "gpt": "reservoir_hw.readout.baselines.configuration:GptConfig",
        "gru": "reservoir_hw.readout.baselines.configuration:GruConfig",
        "lstm": "reservoir_hw.readout.baselines.configuration:LstmConfig",
        "nvar": "reservoir_hw.backends.baselines.nvar:NvarConfig",
        "srn": "reservoir_hw.readout.baselines.configuration:SrnConfig",
        "transformer": "reservoir_hw.readout.baselines.configuration:TransformerConfig",
        "trigram": "reservoir_hw.readout.baselines.ngram:TrigramConfig",
        "volterra": "reservoir_hw.backends.baselines.nvar:VolterraConfig",
    },
    "instruments": {
        "keysight_33500": "reservoir_hw.drivers.visa.keysight:Keysight33500Config",
        "keysight_infiniivision": "reservoir_hw.drivers.visa.keysight:KeysightInfiniiVisionConfig",
        "pymeasure": "reservoir_hw.drivers.visa.pymeasure:PymeasureConfig",
        "red_pitaya": "reservoir_hw.drivers.visa.red_pitaya:RedPitayaConfig",
        "tektronix_afg3000": "reservoir_hw.drivers.visa.tektronix:TektronixAfg3000Config",
        "tektronix_mso": "reservoir_hw.drivers.visa.tektronix:TektronixMsoConfig",
    },
}


_GIVEN: dict[str, dict[str, Plugin]] = {}


@dataclass(frozen=True)
class Plugin:
    """Where a kind comes from. `target` is "module:class"."""

    group: str
    kind: str
    target: str
    origin: str
    given: type[Config] | None = None
    """The class itself, where a program has given it (`give`)."""

    def load(self) -> type[Config]:
        """Import the configuration class. It must be light: heavy imports belong into its `build`."""
        if self.given is not None:
            return self.given
        try:
            found: Any = EntryPoint(self.kind, self.target, self.group).load()
        except Exception as error:
            # Whatever the code of a plug-in does on import, it is that package's mistake.
            raise ConfigurationError(
                f"kind {self.kind!r} ({self.group}, from {self.origin}) cannot be loaded from {self.target}: {error}"
            ) from error
        if not (isinstance(found, type) and issubclass(found, Config)):
            raise ConfigurationError(f"{self.target} (from {self.origin}) must be a class derived from Config")
        field = found.model_fields.get("kind")
        if field is None or self.kind not in get_args(field.annotation):
            raise ConfigurationError(f"{self.target} (from {self.origin}) needs the field kind: Literal[{self.kind!r}]")
        return found


def available(group: str) -> dict[str, Plugin]:
    """All kinds of a group by name; a name that two packages claim is an error."""
    plugins = {kind: Plugin(group, kind, target, "reservoir_hw") for kind, target in BUILT_IN[group].items()}
    for entry in _offered(group, tuple(sys.path)):
        origin = entry.dist.name if entry.dist else entry.value
        clash = plugins.get(entry.name)
        if clash is not None and clash.target != entry.value:
            raise ConfigurationError(
                f"two packages offer the {group} kind {entry.name!r}: {clash.origin} ({clash.target}) and "
                f"{origin} ({entry.value}); uninstall one of them"
            )
        plugins[entry.name] = Plugin(group, entry.name, entry.value, origin)
    return plugins | _GIVEN.get(group, {})


def give(group: str, kind: type[Config]) -> None:
    """Make a class of this program known as a kind, to this process alone; one that is defined again replaces it.

    Raises `ConfigurationError` where it does not say its kind, or the kind is another package's.
    """
    where = f"{kind.__module__}:{kind.__qualname__}"
    names = get_args(kind.model_fields["kind"].annotation) if "kind" in kind.model_fields else ()
    if not names:
        raise ConfigurationError(f"{where} needs the field kind: Literal[...], by which a configuration names it")
    for name in names:
        known = available(group).get(name)
        if known is not None and known.target != where:
            raise ConfigurationError(
                f"{where}: the {group} kind {name!r} is that of {known.origin} ({known.target}): take another name"
            )
        if known is None or known.given is not None:
            _GIVEN.setdefault(group, {})[name] = Plugin(group, name, where, "this program", kind)


@cache
def _offered(group: str, path: tuple[str, ...]) -> list[EntryPoint]:
    """What the packages on this path offer. Looking takes milliseconds, and every point of a grid asks."""
    return list(entry_points(group=f"reservoir_hw.{group}"))


def find(group: str, kind: str) -> Plugin:
    """The plug-in for `kind`, or a `ConfigurationError` that lists what there is."""
    plugins = available(group)
    if kind not in plugins:
        raise ConfigurationError(
            f"unknown kind {kind!r}{did_you_mean(kind, plugins)} (known {group}: {', '.join(sorted(plugins))}; one "
            "that a Python program has given is known to that program alone)"
        )
    return plugins[kind]


Role = TypeVar("Role", bound=Config)

_NEEDS_KIND = {"backends": "a reservoir", "instruments": "an instrument", "tasks": "a task"}


def of_its_kind(group: str, value: Any, base: type[Config]) -> Any:
    """A section of another configuration, validated by the class that stands behind its `kind:`.

    Raises `ConfigurationError` for a kind that is unknown or no `base`, `ValidationError` for what is in it.
    """
    if isinstance(value, base):
        return value
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise ConfigurationError(
            f"{_NEEDS_KIND[group]} needs `kind:`, for instance kind: {next(iter(BUILT_IN[group]))}"
        )
    model = in_role(find(group, value["kind"]).load(), base)
    if model is None:
        raise ConfigurationError(f"kind {value['kind']!r} is no {base.__name__.removesuffix('Config').lower()}")
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        # Raised on, pydantic puts the place of this section before that of each problem.
        raise ValidationError.from_exception_data(
            error.title, [_readable(problem, model) for problem in error.errors()], "json"
        ) from None


def in_role(model: type[Config], base: type[Role]) -> type[Role] | None:
    """The class behind a kind, where a `base` is wanted: the registered one, or else a subclass of it that is a `base`.

    So an instrument that is a generator and a digitizer has one kind: what the classes for both have in common.
    """
    return next((one for one in (model, *model.__subclasses__()) if issubclass(one, base)), None)


def _readable(problem: Any, model: type[Config]) -> InitErrorDetails:
    """The same problem; for an unknown key, with a list of the known keys, which are known only here."""
    kind: Any = PydanticCustomError("of_its_kind", "{message}", {"message": problem["msg"]})
    if problem["type"] == "missing":
        kind = "missing"
    elif problem["type"] == "extra_forbidden":
        hint = ""
        if len(problem["loc"]) == 1:
            known = model.model_fields
            hint = f"{did_you_mean(str(problem['loc'][0]), known)} (known: {', '.join(sorted(known))})"
        kind = PydanticCustomError("unknown_key", "unknown key{hint}", {"hint": hint})
    return InitErrorDetails(type=kind, loc=problem["loc"], input=problem["input"])
