"""From a configuration (file, mapping or object) to an open reservoir; the section `hil:`, which its tests need."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from reservoir_hw.core import registry
from reservoir_hw.core.axes import Dimension, Vary, expand, refuse_vary
from reservoir_hw.core.channels import Channels, chosen_mask
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config, Document, locations, validate
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, ReservoirError, text_of
from reservoir_hw.core.functions import FUNCTION, import_function
from reservoir_hw.core.lazy import missing_extra
from reservoir_hw.core.reservoir import OutOfRange, Reservoir
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import Continuity, Identity, ReservoirSpec
from reservoir_hw.core.validation import whole_number

Group = Literal[
    "repeatability",
    "declaration",
    "shapes",
    "reset",
    "continuity",
    "isolation",
    "causality",
    "memory",
    "range",
    "timing",
    "stability",
    "snapshot",
    "settable",
    "programmable",
    "recovery",
    "safety",
    "identity",
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The groups of tests, in the order in which they run."""


def _reason(text: str) -> str:
    if not text.strip():
        raise ValueError("say why the device does not offer it")
    return text


def _action(action: Any) -> Any:
    is_function = isinstance(action, str) and re.match(FUNCTION, action)
    is_command = isinstance(action, list | tuple) and action and all(isinstance(text, str) for text in action)
    if not is_function and not is_command:
        raise ValueError("it must be module:function, or a command as a list of texts")
    return tuple(action) if isinstance(action, list) else action


Action = Annotated[str | tuple[str, ...], BeforeValidator(_action)]
"""A function, "package.module:function", or a command and its arguments."""


class HilConfig(Config):
    """What tests with hardware in the loop need to know. Nothing in it decides about states."""

    folder: Path = Field(
        default=Path(),
        description="where commands run and relative paths begin; by default the folder of this file",
    )
    not_offered: dict[Group, Annotated[str, AfterValidator(_reason)]] = Field(
        default_factory=dict, description="groups of tests that mean nothing to this device, each with the reason"
    )
    recover: Action | None = Field(default=None, description="brings the device back after a fault")
    safe_check: Action | None = Field(
        default=None,
        description="says whether the device is in its safe state now, by another path than its driver",
    )
    fault: Action | None = Field(default=None, description="makes the device fail once")
    twin: str | None = Field(default=None, description="the reservoir file of a simulation of this device")
    golden: str | None = Field(default=None, description="a trace of this device that it is compared with")
    timeout_s: PositiveFloat = Field(default=30.0, description="a command may take so long")

    @field_validator("twin", "golden")
    @classmethod
    def _in_folder(cls, path: str | None, info: ValidationInfo) -> str | None:
        # A trace may be a URL.
        return path if path is None or "://" in path else str(info.data.get("folder", Path()) / path)


def place_hil(document: Document) -> None:
    """Write into each section `hil` of a reservoir the folder of the file in which it stands."""
    for place in list(locations(document.data)):
        hil = document.at(place)
        of_reservoir = place[-1] == "hil" and isinstance(hil, dict) and "kind" in document.at(place[:-1])
        if of_reservoir and isinstance(hil.get("folder", ""), str):
            hil["folder"] = str((document.folder(place) / hil.get("folder", "")).resolve())


# ---- What a configuration asks to be done: a function of a lab is called, or a command run.


log = logging.getLogger(__name__)

_LONGEST_END = 300


def perform(
    action: str | Sequence[str], config: Any, folder: str | Path, timeout_s: float, section: str = "hil"
) -> Any:
    """Call the function `action` ("package.module:function") with `config`, or run the command `action` in `folder`.

    Gives what the function returns, or whether the command ended with status 0. A command that takes longer than
    `timeout_s` is killed, with the processes that it has started; a function is not timed.

    Raises `ConfigurationError` where there is no such function or program, `DeviceFault` where the function fails or
    the command takes too long, and what of this package's errors the function raises.
    """
    if isinstance(action, str):
        return call(action, config, section)
    status, said = run(list(action), folder, timeout_s, section)
    if status != 0:
        log.info("%s", said)
    return status == 0


def call(target: str, config: Any, section: str = "hil") -> Any:
    """What the function `target` returns for `config`. `section` of the configuration names it. Raises as `perform`."""
    function = import_function(target, section)
    try:
        return function(config)
    except ReservoirError:
        raise
    except (Exception, SystemExit) as error:
        raise DeviceFault(f"{target}: {type(error).__name__}: {text_of(error)}") from error


def run(command: list[str], folder: str | Path, timeout_s: float, section: str = "hil") -> tuple[int, str]:
    """Run it in `folder`: its status, and a sentence about it with the end of what it said. Raises as `perform`."""
    name = shlex.join(command)
    # A file, not a pipe: a server that the command leaves behind may keep it open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigurationError(f"{section}: {name!r} cannot be started in {folder}: {error.strerror}") from error
        try:
            status = process.wait(timeout_s)
        except BaseException as error:
            # Its whole group, which began with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise DeviceFault(
                    f"{name!r} did not end within {timeout_s:g} s and was killed{_end_of(output)}; "
                    f"{section}.timeout_s gives it more time"
                ) from None
            raise
        return status, f"{name!r} ended with status {status}{_end_of(output)}"


def _end_of(output: Any) -> str:
    """The end of what it said."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _LONGEST_END))
    text = output.read().decode(errors="replace").strip()
    return f": {text.splitlines()[-1]}" if text else ""


# ---- From a configuration (file, mapping or object) to an open reservoir.


Encoder: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""From inputs (batch, time, inputs) to what the input chain of a device makes of them, (batch, time, width)."""


class ReservoirConfig(Config):
    """What every kind of reservoir can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    is_computed: ClassVar[bool] = False
    """Whether it is computed wherever it is opened, so that no device is needed, and trying it costs nothing else."""

    never: ClassVar[frozenset[str]] = frozenset()
    """Capabilities of a spec that no device of this kind has, so that they need not be asked for."""
    most_at_once: ClassVar[int | None] = None
    """Sequences that any device of this kind is driven with at once; None: any number, or the device says it."""
    declares_inputs: ClassVar[bool] = False
    """Whether the device itself says how many inputs it has, when it is opened."""

    kind: Any
    inputs: PositiveInt | None = Field(default=None, description="number of input channels; by default the task's")
    label: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(default="", description="what tables and figures call it")
    out_of_range: OutOfRange = Field(
        default="error", description="inputs outside the device's range: refuse them, or clip and count them"
    )

    input_mask: MaskConfig | Literal["none"] | None = Field(
        default=None,
        description="a matrix from the task's channels to the inputs of the device; by default drawn from the seed "
        "where their numbers differ, `none` refuses that",
    )
    vary: Annotated[Vary, NO_INFLUENCE_ON_STATES] = Field(
        default={},
        exclude_if=lambda axes: not axes,
        description="key of this section -> values, one point of an experiment for each; or a list of rows",
    )
    search: Annotated[dict[str, Dimension], NO_INFLUENCE_ON_STATES] = Field(
        default={},
        exclude_if=lambda axes: not axes,
        description="key of this section -> what a sweep tries: {low, high} with log: true or step, or choices",
    )
    # Excluded: what is kept of a configuration, and hashed, does not change with what tests need to know.
    hil: Annotated[HilConfig | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, exclude=True, description="what tests with hardware in the loop need to know"
    )
    _channels: Channels | None = PrivateAttr(default=None)
    _kept_mask: MaskConfig | None = PrivateAttr(default=None)

    @abstractmethod
    def build(self) -> Reservoir:
        """Make the reservoir, not yet open. Heavy imports belong in here."""

    @property
    def name(self) -> str:
        """What tables and figures call it: `label`, or else `kind_name`."""
        return self.label or self.kind_name

    @property
    def kind_name(self) -> str:
        """A name by kind and size."""
        nodes = getattr(self, "nodes", None)
        return self.kind.upper() + (f"({nodes})" if nodes else "")

    def learn_name(self, label: str, units: Mapping[str, str] | None = None) -> None:
        """What the device calls itself, and the units of its knobs, for kinds that know them only when it is open."""

    def with_own_name(self, label: str) -> str:
        """A label that was made before the device was opened, with the name that the device gave itself."""
        return label

    @property
    def knob_values(self) -> dict[str, float]:
        """What the knobs are to be set to, by name."""
        return {name: getattr(knob, "value", knob) for name, knob in getattr(self, "knobs", {}).items()}

    @property
    def knob_units(self) -> dict[str, str]:
        """The units of the knobs, by name, as far as the file gives them."""
        return {name: getattr(knob, "unit", "") for name, knob in getattr(self, "knobs", {}).items()}

    def apart_from_knobs(self) -> str:
        """A text that is the same for configurations that differ in the values of their knobs alone."""
        described = self.model_dump(mode="json", serialize_as_any=True, exclude={"label", "vary", "search"})
        knobs = described.get("knobs", {})
        described["knobs"] = {
            name: {**knob, "value": 0} if isinstance(knob, dict) else 0 for name, knob in knobs.items()
        }
        return json.dumps(described, sort_keys=True)

    @property
    def declared_continuity(self) -> Continuity:
        """What the device will declare of the time between two calls, as far as its file says."""
        return getattr(self, "continuity", "held")

    @property
    def driven_with(self) -> Channels | None:
        """What drives it, where a task has said so (`for_inputs`)."""
        return self._channels

    @property
    def past_steps(self) -> int:
        """How far back the oldest input lies that every state is made of: 0 for all that is no shift register."""
        return 0

    @property
    def encoded_width(self) -> int:
        """How many numbers `encoder` makes of one input."""
        return self.required_inputs()

    def encoder(self) -> Encoder:
        """What the device's own input chain makes of its inputs, behind `input_mask`, without the device.

        By default the inputs themselves. Raises `ConfigurationError` for a kind that has no input chain of its own.
        """
        return np.array

    def bursts(self, steps: int, *, continued: bool) -> int:
        """How many bursts instruments play for a run of so many steps, which goes on from others or begins at rest."""
        return 0

    def played_steps(self, steps: int) -> int:
        """How many steps a device is driven for one run of so many: more where it takes several bursts, or a mean."""
        return steps

    def check_machine(self) -> None:
        """Raise `ConfigurationError` where this machine lacks what opening would need. Opens and calls nothing."""

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration for a task with these channels.

        A device with another number of inputs gets a mask in front (`core.channels`). Raises `ConfigurationError` where
        that is known not to be possible.
        """
        channels = Channels.of(inputs)
        whole_number("inputs", channels.count)
        open_yet = self.inputs is None and not self.declares_inputs and not channels.states
        taken = open_yet and not isinstance(self.input_mask, MaskConfig)
        told = self.model_copy(update={"inputs": channels.count} if taken else None)
        told._channels = channels
        if isinstance(self.input_mask, MaskConfig):
            self.input_mask.check_inputs(channels.count, "input_mask")
        told.planned_mask()
        return told

    def keeping_mask(self, drawn: Mapping[str, Any] | None) -> Self:
        """This configuration with the mask of a training (`spec.input_mask`), where one is needed."""
        told = self.model_copy()
        told._kept_mask = None if drawn is None else MaskConfig.model_validate(dict(drawn))
        return told

    def planned_mask(self) -> MaskConfig | None:
        """The mask that will stand in front of the device, as far as it is known before it is opened.

        Raises `ConfigurationError` where one is needed and none is possible.
        """
        if self._channels is None or self.inputs is None or self._channels.states or self.declares_inputs:
            return self.input_mask if isinstance(self.input_mask, MaskConfig) else None
        seen = ReservoirSpec(
            inputs=self.inputs,
            nodes=1,
            input_range=getattr(self, "input_range", None),
            identity=Identity(vendor="", model=self.name, simulated=getattr(self, "simulated", self.is_computed)),
        )
        return chosen_mask(
            self.input_mask,
            self._channels,
            seen,
            clips=self.out_of_range == "clip",
            seed=getattr(self, "seed", 0),
            kept=self._kept_mask,
        )

    def for_layers(self, width: int | None, layers: int | None) -> list[ReservoirConfig]:
        """One for each of `layers` layers of a model that drive it with `width` channels, or one that all share.

        None where there is no model to say it. Raises `ConfigurationError` where it has to be known.
        """
        return [self]

    def required_inputs(self) -> int:
        """`inputs`, or an error where neither the file nor a task gave it."""
        if self.inputs is None and isinstance(self.input_mask, MaskConfig):
            raise ConfigurationError("`input_mask:` needs to know `inputs`: how many has the device?")
        if self.inputs is None:
            raise ConfigurationError(f"a reservoir of kind {self.kind!r} needs `inputs` when no task gives it")
        return self.inputs


def _of_its_kind(value: Any) -> Any:
    for axes in ("vary", "search"):
        if isinstance(value, dict) and value.get(axes):
            raise ConfigurationError(f"`{axes}` stands in the section `reservoir` itself, not in a reservoir within it")
    return registry.of_its_kind("backends", value, ReservoirConfig)


AnyReservoirConfig = Annotated[
    SerializeAsAny[ReservoirConfig],
    BeforeValidator(_of_its_kind),
    WithJsonSchema({"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}),
]
"""A reservoir of any kind as a field of another configuration."""


def parse_reservoir(document: Document, *, varies: bool = False) -> ReservoirConfig:
    """The configuration in a reservoir file, or in the `reservoir` section of an experiment file.

    Raises `ConfigurationError` where it varies, unless `varies` allows that.
    """
    section = reservoir_section(document)
    place_hil(section)
    expand(section.data)
    if not varies:
        refuse_vary(section)
    kind = section.data.get("kind")
    if not isinstance(kind, str):
        raise ConfigurationError(f"{section.origin(())}: a reservoir needs `kind:`, for instance kind: esn")
    try:
        model = registry.find("backends", kind).load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{section.origin(('kind',))}: {error}") from None
    if not issubclass(model, ReservoirConfig):
        raise ConfigurationError(f"the class of kind {kind!r} must derive from ReservoirConfig")
    return validate(model, section)


def reservoir_section(document: Document) -> Document:
    """The part of a document that describes the reservoir: the whole of it if `kind:` is at its top."""
    if "kind" in document.data or "reservoir" not in document.data:
        return document
    section = document.data["reservoir"]
    if not isinstance(section, dict):
        raise ConfigurationError(f"{document.origin(('reservoir',))}: reservoir must be a mapping with `kind:`")
    origins = {place[1:]: origin for place, origin in document.origins.items() if place[:1] == ("reservoir",)}
    return Document(section, origins)


def build_reservoir(config: ReservoirConfig) -> Reservoir:
    """`config.build()`, with a spec that contradicts itself reported as the `ConfigurationError` that it is."""
    try:
        reservoir = config.build()
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    except ValidationError as error:
        problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise ConfigurationError(f"reservoir ({config.kind}): {problems}") from error
    reservoir.label = reservoir.label or config.name
    reservoir.configuration = config
    if config._channels is None and isinstance(config.input_mask, MaskConfig):
        raise ConfigurationError(
            "`input_mask:` needs the number of channels to spread: a task gives it, or open_reservoir(..., inputs=)"
        )
    if config._channels is not None:
        seed = getattr(config, "seed", 0)
        reservoir.spread_inputs(config.input_mask, config._channels, seed=seed, kept=config._kept_mask)
    return reservoir


def reservoir_config(config: ReservoirConfig | Mapping[str, Any] | str | os.PathLike[str]) -> ReservoirConfig:
    """The configuration that an object, a mapping with `kind`, or a reservoir or experiment file describes."""
    if isinstance(config, ReservoirConfig):
        return config
    if isinstance(config, Mapping):
        return parse_reservoir(Document.from_mapping(config, "open_reservoir"))
    document = Document.from_file(config)
    document.set_environment(prefix=("reservoir",) if "kind" in document.data else ())
    return parse_reservoir(document)


def open_reservoir(
    config: ReservoirConfig | Mapping[str, Any] | str | os.PathLike[str], *, inputs: int | None = None
) -> Reservoir:
    """Build and open a reservoir; close it, or use it in a `with` block.

    Parameters
    ----------
    config
        A configuration object, a mapping with `kind`, or the path of a reservoir or experiment file.
    inputs
        Number of input channels, for kinds that take it from their task.
    """
    config = reservoir_config(config)
    if inputs is not None:
        config = config.for_inputs(inputs)
    return build_reservoir(config).open()
