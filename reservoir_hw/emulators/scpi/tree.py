"""Commands of an instrument, declared on the methods that carry them out, or for a plain attribute in one line.

    class Generator(ScpiDevice):
        @command("[SOURce{channel:1-2}:]FREQuency[:FIXed]", Number("HZ", low=1e-6, high=30e6))
        def set_frequency(self, channel, value): ...

        @query("[SOURce{channel:1-2}:]FREQuency[:FIXed]")
        def frequency(self, channel): return self.frequencies[channel]

        display = setting("DISPlay", Boolean(), "_display_is_on")
        unit = constant("UNIT", "V", Keyword("V"))

A header has the capitals of its short form. `[...]` may be left out, `|` separates two ways to write it:
`(DATA|TRACe):POINts`, `FREQuency[:CW|:FIXed]`. `{name:1-2}` is a numeric suffix, 1 if it is left out; a suffix beyond
the range is -114. `{1-1}` without a name is one that the method does not get.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from reservoir_hw.emulators.scpi.messages import Argument, Limit, ScpiError, Token, forms, split_arguments, split_units

Method = TypeVar("Method", bound=Callable[..., Any])

_UNIT = re.compile(rb"[\x00-\x20]*(:?[A-Za-z*][A-Za-z0-9_:*]*\??)([\x00-\x20]*)")
_DECLARED = re.compile(
    r"(?P<mnemonic>\*?[A-Za-z0-9_]+)|\{(?:(?P<name>\w+):)?(?P<low>\d+)-(?P<high>\d+)\}|(?P<sign>[\[\]():|])"
)
_SIGNS = {"[": "(?:", "]": ")?", "(": "(?:", ")": ")", "|": "|", ":": ":"}


@dataclass(frozen=True)
class Declared:
    """One header with its arguments, and the method behind it, which gets the device first."""

    header: str
    arguments: tuple[Argument, ...]
    required: int
    is_query: bool
    method: Callable[..., Any]
    indefinite: bool = False


@dataclass(frozen=True)
class Pair:
    """Commands and queries as a class attribute: mostly a command and the query of the same header."""

    scpi_headers: tuple[Declared, ...]


def command(header: str, *arguments: Argument, required: int | None = None) -> Callable[[Method], Method]:
    """Declare a command. The method gets the header's suffixes and then the values of the arguments.

    A method may have several headers. A subclass that overrides a method declares it again.

    Args:
        header: See above; `*` begins a common command.
        arguments: What is accepted.
        required: How many of the arguments must be there, by default all. The method has defaults for the others.
    """
    return _declare(header, arguments, required, is_query=False)


def query(
    header: str, *arguments: Argument, required: int | None = None, indefinite: bool = False
) -> Callable[[Method], Method]:
    """Declare a query; the header is written without `?`. The method returns what `ScpiDevice.answer` takes.

    Args:
        header, arguments, required: As for `command`.
        indefinite: The end of the answer cannot be told from its text, as of `*IDN?`: a query that follows in the same
            message is -440.
    """
    return _declare(header, arguments, required, is_query=True, indefinite=indefinite)


def pair(header: str, argument: Argument, change: Callable[..., Any], tell: Callable[..., Any]) -> Pair:
    """Declare a command with one argument and its query.

    Args:
        header, argument: As for `command`.
        change: Gets the device, the header's suffixes and the value.
        tell: Gets the device and the suffixes, and returns the answer.
    """
    changing = Declared(header, (argument,), 1, is_query=False, method=change)
    return Pair((changing, Declared(header, (), 0, is_query=True, method=tell)))


def itself(device: Any, *suffixes: int) -> Any:
    """The device."""
    return device


def channel_of(device: Any, *suffixes: int) -> Any:
    """What `device.channels` has for the last suffix."""
    return device.channels[suffixes[-1]]


def limit(name: str, times: float = 1.0) -> Limit:
    """So many times an attribute of the channel, as a limit of a number."""
    return lambda device, *suffixes: times * getattr(channel_of(device, *suffixes), name)


def setting(
    header: str,
    argument: Argument,
    attribute: str,
    of: Callable[..., Any] = itself,
    changed: Callable[..., None] = lambda device, *suffixes: None,
    kept: Callable[[Any], Any] = lambda value: value,
) -> Pair:
    """Declare a command that sets an attribute, and the query that answers it.

    Args:
        header, argument: As for `command`.
        attribute: Its name.
        of: What has the attribute: gets the device and the header's suffixes. By default it is the device.
        changed: What the command does then, by default nothing. It gets the same.
        kept: What becomes of a value before it is kept, by default nothing. May raise `ScpiError`.
    """

    def change(device: Any, *given: Any) -> None:
        *suffixes, value = given
        setattr(of(device, *suffixes), attribute, kept(value))
        changed(device, *suffixes)

    def tell(device: Any, *suffixes: int) -> Any:
        return argument.told(getattr(of(device, *suffixes), attribute))

    return pair(header, argument, change, tell)


def reading(header: str, attribute: str, of: Callable[..., Any] = itself) -> Callable[..., Any]:
    """Declare a query that answers an attribute; `of` is that of `setting`."""
    return query(header)(lambda device, *suffixes: getattr(of(device, *suffixes), attribute))


def constant(header: str, answer: Any, argument: Argument | None = None) -> Any:
    """Declare a query that always answers the same. With an argument, a command accepts it and changes nothing."""
    if argument:
        return pair(header, argument, lambda *given: None, lambda *given: answer)
    return query(header)(lambda *given: answer)


def _declare(
    header: str, arguments: tuple[Argument, ...], required: int | None, *, is_query: bool, indefinite: bool = False
) -> Callable[[Method], Method]:
    needed = len(arguments) if required is None else required

    def mark(method: Method) -> Method:
        declared = Declared(header, arguments, needed, is_query, method, indefinite)
        setattr(method, "scpi_headers", (*getattr(method, "scpi_headers", ()), declared))  # noqa: B010
        return method

    return mark


@dataclass(frozen=True)
class Call:
    """One unit of a message: what is meant, and the arguments as they were sent."""

    declared: Declared
    suffixes: tuple[int, ...]
    tokens: list[Token]

    def perform(self, device: Any) -> Any:
        """Check the arguments, call the method, return what it returns. Raises `ScpiError`."""
        tokens, kinds = self.tokens, self.declared.arguments
        if len(tokens) < self.declared.required:
            raise ScpiError(-109)
        values = []
        for place, (kind, token) in enumerate(zip(kinds, tokens, strict=False)):
            if kind.takes_rest:
                values.append(kind.read_rest(tokens[place:], device, self.suffixes))
                break
            values.append(kind.read(token, device, self.suffixes))
        else:
            if len(tokens) > len(kinds):
                raise ScpiError(-108)
        return self.declared.method(device, *self.suffixes, *values)


class CommandTree:
    """All commands that a class declares, also in its base classes."""

    def __init__(self, owner: type) -> None:
        nodes = [
            _Node(declared) for name in dir(owner) for declared in getattr(getattr(owner, name), "scpi_headers", ())
        ]
        # `OUTPUT:STATE` may mean something else than `OUTPUT1:STATE`.
        self._nodes = sorted(nodes, key=lambda node: len(node.ranges))
        # Programs send the same few headers again and again.
        self._find = functools.lru_cache(maxsize=1024)(self._search)

    def calls(self, message: bytes | bytearray) -> Iterator[Call]:
        """The units of a message, one after the other.

        A header without a colon at its start goes on from the path of the header before it; common commands do not
        move the path. Raises `ScpiError` where a unit cannot be understood.
        """
        path = ""
        for start, end in split_units(message):
            if (unit := _UNIT.match(message, start, end)) is None:
                if bytes(message[start:end]).strip():
                    raise ScpiError(-102)
                continue
            header = unit[1].decode()
            if not header.startswith("*"):
                header = header[1:] if header.startswith(":") else path + header
                path = header[: header.rfind(":") + 1]
            declared, suffixes = self._find(header)
            if unit.end() < end and not unit[2]:
                raise ScpiError(-111)
            yield Call(declared, suffixes, split_arguments(message, unit.end(), end))

    def _search(self, header: str) -> tuple[Declared, tuple[int, ...]]:
        capitals, is_query = header.removesuffix("?").upper(), header.endswith("?")
        for node in self._nodes:
            if node.declared.is_query == is_query and (found := node.pattern.fullmatch(capitals)):
                return node.declared, node.suffixes(found)
        raise ScpiError(-113)


class _Node:
    """A declared header as a regular expression with one group for each suffix."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.ranges: list[range] = []
        self._is_passed: list[bool] = []
        parts: list[str] = []
        position = 0
        while position < len(declared.header):
            if (part := _DECLARED.match(declared.header, position)) is None:
                raise ValueError(f"the header {declared.header!r} cannot be read from character {position + 1} on")
            position = part.end()
            if part["mnemonic"]:
                parts.append("(?:" + "|".join(map(re.escape, forms(part["mnemonic"]))) + ")")
            elif part["sign"]:
                parts.append(_SIGNS[part["sign"]])
            else:
                parts.append(r"(\d{0,9})")
                self.ranges.append(range(int(part["low"]), int(part["high"]) + 1))
                self._is_passed.append(part["name"] is not None)
        self.pattern = re.compile("".join(parts))

    def suffixes(self, found: re.Match[str]) -> tuple[int, ...]:
        """The numbers in a header that the method gets. Raises `ScpiError` beyond the range."""
        numbers = tuple(int(digits or 1) for digits in found.groups())
        if any(number not in allowed for number, allowed in zip(numbers, self.ranges, strict=True)):
            raise ScpiError(-114)
        return tuple(number for number, passed in zip(numbers, self._is_passed, strict=True) if passed)
