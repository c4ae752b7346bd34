"""Any instrument that PyMeasure has a class for: what a file says about it, its object, and what goes wrong with it."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from string import Formatter
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, NonNegativeFloat, model_validator

from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config
from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    MissingExtra,
    ReservoirError,
    text_of,
)
from reservoir_hw.core.functions import FunctionName, import_function
from reservoir_hw.drivers.visa.links import is_raw_socket, without_delay
from reservoir_hw.drivers.visa.roles import Input, InstrumentConfig, Output
from reservoir_hw.drivers.visa.scpi import ScpiInstrument

Arguments = list[Any] | dict[str, Any]

_NAME_ALONE = re.compile(r"\{(\w+)\}")


class Step(Config):
    """Attributes that are set, in their order, or a method that is called. Texts may have {names} of what is known."""

    set: dict[str, Any] = Field(default_factory=dict, description="values by attribute, such as ch_1.amplitude")
    call: str | None = Field(default=None, description="a method, such as ch_1.data_arb")
    arguments: Arguments = Field(default_factory=list, description="of the method, in their order or by name")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.set) == (self.call is not None):
            raise ValueError("a step has `set:` or `call:`")
        return self

    @property
    def paths(self) -> list[str]:
        """The attributes and methods that it uses."""
        return [*self.set] if self.call is None else [self.call]


class Reading(Config):
    """An attribute that is read, or a method that is called for its result."""

    attr: str | None = Field(default=None, description="an attribute")
    call: str | None = Field(default=None, description="a method")
    arguments: Arguments = Field(default_factory=list, description="of the method, in their order or by name")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.attr is None) == (self.call is None):
            raise ValueError("either `attr:` or `call:` says what is asked")
        return self

    @property
    def path(self) -> str:
        """The attribute or method."""
        return self.attr or self.call or ""


class Condition(Reading):
    """True when what is read is `value`."""

    value: bool | int | float | str
    mask: int | None = Field(default=None, description="of a whole number, only these bits count")

    def met_by(self, found: Any) -> bool:
        """Whether this is the value."""
        if self.mask is not None:
            return int(float(found)) & self.mask == self.value
        try:
            return float(found) == float(self.value)
        except ValueError:
            return str(found).strip() == str(self.value)


def names_in(value: Any) -> set[str]:
    """All {names} in the texts of a value or step. Raises `ValueError` for a brace without its other one."""
    if isinstance(value, Config):
        return names_in([getattr(value, name) for name in type(value).model_fields])
    if isinstance(value, Mapping):
        return names_in([*value.keys(), *value.values()])
    if isinstance(value, list | tuple):
        return set().union(*map(names_in, value))
    if not isinstance(value, str):
        return set()
    return {name for _, name, _, _ in Formatter().parse(value) if name is not None}


def filled(value: Any, names: Mapping[str, Any]) -> Any:
    """A value with its {names} replaced. A text that is one name alone becomes what stands behind it, of any type."""
    if isinstance(value, Mapping):
        return {filled(key, names): filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    if not isinstance(value, str):
        return value
    alone = _NAME_ALONE.fullmatch(value)
    return names[alone[1]] if alone else value.format_map(names)


def for_each(steps: Iterable[Step], name: str, values: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Step, Any]]:
    """Steps with what is known to them: one that has {name} comes once for each of the values, others once."""
    every = [*values]
    for step in steps:
        for known in every if name in names_in(step) else every[:1]:
            yield step, known


END = "\r\n"
"""Of a message. Some instruments wait for the CR, for all others it is white space."""

NAMES = {"low_v", "high_v", "span_v", "middle_v", "samples", "sample_rate_hz", "duration_s"}
"""Of a channel, and of what is played or recorded."""


def channel_names(channel: Output | Input, samples: int, sample_rate_hz: float) -> dict[str, Any]:
    """What they stand for, and the keys of the channel."""
    low, high = channel.range_v
    return {
        **channel.model_dump(),
        "low_v": low,
        "high_v": high,
        "span_v": high - low,
        "middle_v": (low + high) / 2,
        "samples": samples,
        "sample_rate_hz": sample_rate_hz,
        "duration_s": samples / sample_rate_hz,
    }


class PymeasureConfig(InstrumentConfig):
    """An instrument that PyMeasure has a class for: `outputs` below `generator:`, `inputs` below `digitizer:`."""

    kind: Literal["pymeasure"]
    instrument: FunctionName = Field(description="PyMeasure's class, as module:class")
    identity: str = Field(
        min_length=1, description="regular expression for the answer to *IDN?: another instrument is refused"
    )
    connection: Annotated[dict[str, Any], NO_INFLUENCE_ON_STATES] = Field(
        default_factory=dict, description="what the class is made with, such as {baud_rate: 9600}"
    )
    tolerance: NonNegativeFloat = Field(
        default=0.01, description="by how much of its value an attribute may differ when it is read back"
    )

    steps: ClassVar[tuple[str, ...]]
    """The fields in which {names} may stand."""
    names: ClassVar[set[str]]
    """What these names may be."""

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for field in self.steps:
            if unknown := sorted(names_in([getattr(self, field)]) - self.names):
                known = ", ".join(f"{{{name}}}" for name in sorted(self.names))
                raise ValueError(f"{field} has {{{unknown[0]}}}; known here are {known}")
        return self


# ---- An object of one of PyMeasure's classes, and what goes wrong with it in our words.


log = logging.getLogger(__name__)

AnyConfig = TypeVar("AnyConfig", bound=PymeasureConfig)

# What SCPI calls infinity.
_INFINITY = 9.9e37


class PymeasureInstrument(Generic[AnyConfig]):
    """Its object of PyMeasure is made when it is first used, and anew after something went wrong.

    `paths` are the attributes and methods that will be used. `open` raises `ConfigurationError` if the class has not
    all of them. All methods raise `DeviceTimeout`, `DeviceDisconnected`, `DeviceFault`, and `ConfigurationError` for
    values that the class refuses.
    """

    def __init__(self, config: AnyConfig, paths: Iterable[str]) -> None:
        self.idn = ""
        """See `Instrument.idn`."""
        self._config, self._paths = config, [*paths]
        self._class = _class_of(config.instrument)
        self._made: Any = None
        # What an error is about.
        self._doing = "*IDN?"
        self._lock = threading.RLock()

    def open(self) -> Self:
        """Idempotent."""
        with self._used():
            return self

    def close(self) -> None:
        """Idempotent. The instrument keeps its settings."""
        with self._lock:
            made, self._made = self._made, None
            if made is not None:
                try:
                    made.adapter.close()
                # pyvisa-py raises what comes, and the connection is of no use any more.
                except Exception as error:
                    log.debug("%s: closing: %s", self._config.address, text_of(error))

    def _carry_out(self, steps: Iterable[tuple[Step, Mapping[str, Any]]]) -> None:
        """Set and call, each step with the names that it knows; what was set is read back."""
        with self._used() as made:
            for step, names in steps:
                if step.call is not None:
                    self._call(made, step.call, step.arguments, names)
                for path, value in step.set.items():
                    self._set(made, filled(path, names), filled(value, names))
            self._check_errors(made)

    def _set_number(self, path: str, value: float) -> float:
        """What is read back."""
        with self._used() as made:
            self._doing = path
            _assign(made, path, value)
            found = float(_read(made, path))
            self._check_errors(made)
            return found

    def _ask(self, reading: Reading, names: Mapping[str, Any]) -> Any:
        """The value of an attribute, or the result of a method."""
        with self._used() as made:
            if reading.call is not None:
                return self._call(made, reading.call, reading.arguments, names)
            self._doing = filled(reading.path, names)
            return _read(made, self._doing)

    def _write(self, *commands: str) -> None:
        """Send commands as they are."""
        with self._used() as made:
            for command in commands:
                self._doing = command
                made.write(command)

    def _finish(self, timeout_s: float) -> None:
        """Until all that was asked for is done (`*OPC?`)."""
        with self._used() as made:
            self._doing = "*OPC?"
            made.adapter.connection.timeout = 1000 * timeout_s
            made.ask("*OPC?")
            made.adapter.connection.timeout = 1000 * self._config.timeout_s

    @contextmanager
    def _used(self) -> Iterator[Any]:
        import pyvisa
        from pyvisa.constants import StatusCode

        with self._lock:
            try:
                if self._made is None:
                    self._make()
                yield self._made
            except BaseException as error:
                self.close()
                where = f"{self._config.address}: {self._doing}"
                match error:
                    case ReservoirError():
                        raise
                    case pyvisa.VisaIOError() if error.error_code == StatusCode.error_timeout:
                        limit = f"{self._config.timeout_s:g} s"
                        raise DeviceTimeout(f"{where}: nothing came within {limit}, and an answer was due") from None
                    case pyvisa.Error() | OSError():
                        raise DeviceDisconnected(f"{where}: the connection is gone: {text_of(error)}") from error
                    case Exception():
                        raise DeviceFault(f"{where}: {type(error).__name__}: {text_of(error)}") from error
                raise

    def _make(self) -> None:
        config = self._config
        # It knows an address where nobody listens, which PyMeasure does not.
        asked = ScpiInstrument(config.address, library=config.library, timeout_s=config.timeout_s)
        asked.end = END
        with asked:
            idn = asked.idn
        if not re.search(config.identity, idn):
            raise ConfigurationError(f"{config.address} is {idn!r}, which does not match identity {config.identity!r}")
        if self.idn not in ("", idn):
            raise DeviceFault(f"{config.address} was {self.idn!r}, and is {idn!r} now")
        with warnings.catch_warnings():
            # PyMeasure asks its authors for changes.
            warnings.simplefilter("ignore", FutureWarning)
            try:
                self._made = self._class(config.address, visa_library=config.library, **config.connection)
            except TypeError as error:
                raise ConfigurationError(f"{config.instrument} cannot be made: {error}") from error
        connection = self._made.adapter.connection
        # Some classes have a timeout of their own.
        connection.timeout = 1000 * config.timeout_s
        # Nothing else says there where an answer ends.
        if is_raw_socket(config.address) and connection.read_termination is None:
            connection.read_termination = "\n"
        without_delay(connection)
        for path in self._paths:
            _place(self._made, path)
        self.idn = idn

    def _call(self, made: Any, call: str, arguments: Any, names: Mapping[str, Any]) -> Any:
        self._doing = filled(call, names)
        owner, name = _place(made, self._doing)
        given = filled(arguments, names)
        method = getattr(owner, name)
        return method(**given) if isinstance(given, dict) else method(*given)

    def _set(self, made: Any, path: str, value: Any) -> None:
        self._doing = path
        _assign(made, path, value)
        try:
            found = _read(made, path)
        except LookupError as error:
            # PyMeasure's answer for what can only be set.
            if type(error) is LookupError:
                return
            raise
        if not _agree(value, found, self._config.tolerance):
            raise DeviceFault(f"{self._config.address}: {path} is {found!r}, and {value!r} was set")

    def _check_errors(self, made: Any) -> None:
        self._doing = "check_errors"
        if found := made.check_errors():
            raise DeviceFault(f"{self._config.address}: the instrument reports {'; '.join(map(str, found))}")


def _class_of(target: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pymeasure.instruments import Instrument  # pyright: ignore[reportMissingImports]

            found: Any = import_function(target, "instrument", "class")
    except ImportError as error:
        raise MissingExtra("kind pymeasure needs PyMeasure: pip install pymeasure") from error
    if not (isinstance(found, type) and issubclass(found, Instrument)):
        raise ConfigurationError(f"instrument: {target!r} is no class of PyMeasure's instruments")
    return found


def _place(made: Any, path: str) -> tuple[Any, str]:
    """The object that has the attribute at the end of a path. Python would make an attribute of any name."""
    *parents, name = path.split(".")
    for part in [*parents, name]:
        if not (hasattr(type(made), part) or part in vars(made)):
            known = {*dir(type(made)), *vars(made)}
            close = get_close_matches(part, [one for one in known if not one.startswith("_")], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(f"{path}: {type(made).__name__} has no {part!r}{hint}")
        if part is not name:
            made = getattr(made, part)
    return made, name


def _read(made: Any, path: str) -> Any:
    return getattr(*_place(made, path))


def _assign(made: Any, path: str, value: Any) -> None:
    owner, name = _place(made, path)
    try:
        setattr(owner, name, value)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} = {value!r} is refused by {type(owner).__name__}: {error}") from error


def _agree(value: Any, found: Any, tolerance: float) -> bool:
    """Numbers within the tolerance, texts but for quotes and capitals."""
    try:
        wanted, read = (np.nan_to_num(np.asarray(one, np.float64), posinf=_INFINITY) for one in (value, found))
    except (ValueError, TypeError):
        return str(found).strip().strip('"').casefold() == str(value).casefold()
    return wanted.shape == read.shape and np.allclose(read, wanted, rtol=tolerance)
