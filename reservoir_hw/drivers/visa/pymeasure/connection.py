"""An object of one of PyMeasure's classes, and what goes wrong with it in our words."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Generic, Self, TypeVar

import numpy as np

from reservoir_hw.core.errors import (
    ConfigurationError,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    MissingExtra,
    ReservoirError,
    text_of,
)
from reservoir_hw.core.functions import import_function
from reservoir_hw.drivers.visa.links import is_raw_socket
from reservoir_hw.drivers.visa.pymeasure.configuration import END, PymeasureConfig, Reading, Step, filled
from reservoir_hw.drivers.visa.scpi import ScpiInstrument
from reservoir_hw.drivers.visa.session import without_delay

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
        found = made.check_errors()
        if found:
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
    owner, name = _place(made, path)
    return getattr(owner, name)


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
