"""Program messages (IEEE 488.2, 7): where they, their units and their arguments end, and kinds of arguments."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

# SCPI-99, volume 2, 21.8.
STANDARD_ERRORS = {
    -100: "Command error",
    -101: "Invalid character",
    -102: "Syntax error",
    -103: "Invalid separator",
    -104: "Data type error",
    -108: "Parameter not allowed",
    -109: "Missing parameter",
    -111: "Header separator error",
    -113: "Undefined header",
    -114: "Header suffix out of range",
    -121: "Invalid character in number",
    -131: "Invalid suffix",
    -138: "Suffix not allowed",
    -151: "Invalid string data",
    -161: "Invalid block data",
    -200: "Execution error",
    -211: "Trigger ignored",
    -213: "Init ignored",
    -220: "Parameter error",
    -221: "Settings conflict",
    -222: "Data out of range",
    -223: "Too much data",
    -224: "Illegal parameter value",
    -230: "Data corrupt or stale",
    -240: "Hardware error",
    -310: "System error",
    -350: "Queue overflow",
    -400: "Query error",
    -410: "Query INTERRUPTED",
    -420: "Query UNTERMINATED",
    -430: "Query DEADLOCKED",
    -440: "Query UNTERMINATED after indefinite response",
}
QUEUE_LENGTH = 20


class ScpiError(Exception):
    """What an instrument puts into its error queue.

    Args:
        code: The number. Standard errors are negative; an instrument's own are positive.
        text: Needed for numbers that are not in `STANDARD_ERRORS`.
    """

    def __init__(self, code: int, text: str | None = None) -> None:
        self.code = code
        self.text = STANDARD_ERRORS[code] if text is None else text
        super().__init__(f'{code},"{self.text}"')

    @property
    def is_command_error(self) -> bool:
        """Whether the message could not be understood. What follows in it is then discarded."""
        return -200 < self.code <= -100

    @property
    def event_bit(self) -> int:
        """The bit that it sets in the standard event status register (IEEE 488.2, 11.5.1)."""
        if self.is_command_error:
            return 0x20
        if -300 < self.code <= -200:
            return 0x10
        if -500 < self.code <= -400:
            return 0x04
        return 0x08


class ErrorQueue:
    """First in, first out. When it is full, its last entry says so, and later errors are lost."""

    def __init__(self) -> None:
        self._errors: deque[ScpiError] = deque()

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, error: ScpiError) -> None:
        """Keep an error."""
        if len(self._errors) < QUEUE_LENGTH:
            self._errors.append(error)
        else:
            self._errors[-1] = ScpiError(-350)

    def take(self) -> ScpiError:
        """Remove the oldest one and return it; `0,"No error"` if there is none."""
        return self._errors.popleft() if self._errors else ScpiError(0, "No error")

    def clear(self) -> None:
        """Forget them all."""
        self._errors.clear()


Token = bytes | memoryview
"""An argument as it was sent: the contents of a block as a view of the message, everything else as bytes."""

_STRING_OR_BLOCK = re.compile(rb"[\"'#]")
_STOPS = {stop: re.compile(b"[\"'#" + stop + b"]") for stop in (b"\n", b";", b",")}
_STRING_ENDS = {quote: re.compile(b"[\n" + quote + b"]") for quote in (b'"', b"'")}
_BLOCK_HEADER = re.compile(rb"#([1-9])")


class Found(NamedTuple):
    """Where a stop is. Without one, `at` is None, and more bytes have to come."""

    at: int | None
    resume: int
    """Where to look on when more bytes have come."""
    missing: int
    """How many bytes must come at least."""


def find_message_end(data: bytes | bytearray, start: int = 0) -> Found:
    """The next newline of a stream that ends a message."""
    return _find(data, b"\n", start, len(data), ended=False)


def split_messages(data: bytearray) -> list[bytearray]:
    """The messages in `data`, of which the last one ends with the data (END of IEEE 488.2)."""
    pieces = list(_pieces(data, b"\n", 0, len(data)))
    if pieces[0][1] >= len(data) - 1:
        # One message, which may be large: it is not copied.
        del data[pieces[0][1] :]
        return [data]
    return [data[start:end] for start, end in pieces]


def split_units(message: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Start and end of each unit of a message."""
    return _pieces(message, b";", 0, len(message))


def split_arguments(message: bytes | bytearray, start: int, end: int) -> list[Token]:
    """The arguments between `start` and `end`. Raises `ScpiError` where a block is not whole."""
    if not _STRING_OR_BLOCK.search(message, start, end):
        text = bytes(message[start:end])
        return [part.strip() for part in text.split(b",")] if text.strip() else []
    return [_token(message, *piece) for piece in _pieces(message, b",", start, end)]


def _token(message: bytes | bytearray, start: int, end: int) -> Token:
    while start < end and message[start] <= 0x20:
        start += 1
    if message[start : start + 2] == b"#0":
        # The newline at its end belongs to the message.
        return memoryview(message)[start + 2 : end - message.endswith(b"\n")]
    if not _BLOCK_HEADER.match(message, start, end):
        return bytes(message[start:end]).strip()
    first, after = _block(message, start, end) or (end, end + 1)
    if after > end or bytes(message[after:end]).strip():
        raise ScpiError(-161)
    return memoryview(message)[first:after]


def _block(data: bytes | bytearray, start: int, end: int) -> tuple[int, int] | None:
    """Where the contents of a block begin and end, or None if its header is not whole."""
    first = start + 2 + data[start + 1] - ord("0")
    digits = bytes(data[start + 2 : min(first, end)])
    if first > end or not digits.isdigit():
        return None
    return first, first + int(digits)


def _pieces(data: bytes | bytearray, stop: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    while (at := _find(data, stop, start, end, ended=True).at) is not None:
        yield start, at
        start = at + 1
    yield start, end


def _find(data: bytes | bytearray, stop: bytes, start: int, end: int, *, ended: bool) -> Found:
    position = start
    while found := _STOPS[stop].search(data, position, end):
        at, character = found.start(), found.group()
        if character == stop:
            return Found(at, at, 0)
        if character == b"#":
            if (block_end := _after_hash(data, at, end, ended=ended)) is None:
                return Found(None, at, 1)
            if block_end >= end:
                # Behind the block comes at least the byte that ends its message.
                return Found(None, at, block_end - end + 1)
            position = block_end
        else:
            if (close := _STRING_ENDS[character].search(data, at + 1, end)) is None:
                return Found(None, at, 1)
            # A newline ends the message also where somebody forgot the second quote.
            position = close.start() if close.group() == b"\n" else close.end()
    return Found(None, end, 1)


def _after_hash(data: bytes | bytearray, at: int, end: int, *, ended: bool) -> int | None:
    """Where to look on behind a `#`, or None if that is not known yet."""
    if at + 1 == end:
        return None
    kind = data[at + 1 : at + 2]
    if kind == b"0":
        # Such a block ends with its message; on a stream that is the next newline.
        newline = -1 if ended else data.find(b"\n", at, end)
        return end if newline < 0 else newline
    if not kind.isdigit():
        return at + 1
    digits = bytes(data[at + 2 : min(at + 2 + int(kind), end)])
    if digits and not digits.isdigit():
        return at + 1
    block = _block(data, at, end)
    return None if block is None else block[1]


# ---- Kinds of arguments (program data, IEEE 488.2, 7.7): what a command accepts, and what its method gets.
#
# An argument that does not fit raises `ScpiError` with the number that SCPI-99 has for it.


Limit = float | Callable[..., float]
"""A number, or a function of the device and the header's suffixes, for a limit that depends on other settings."""

_NUMBER = re.compile(rb"([+-]?(?:\d+\.?\d*|\.\d+)(?:\s*[eE]\s*[+-]?\d+)?)\s*(.*)", re.DOTALL)
_NUMBER_BEGINS = re.compile(rb"[-+.\d]")
_OTHER_BASES = {b"H": 16, b"Q": 8, b"B": 2}
_ONLY_NUMBERS = re.compile(rb"[-+.,0-9eE\s]*")
_CHARACTER_DATA = re.compile(rb"[A-Za-z][A-Za-z0-9_]*")
# IEEE 488.2, table 7-3.
_MULTIPLIERS = {
    "EX": 1e18, "PE": 1e15, "T": 1e12, "G": 1e9, "MA": 1e6, "K": 1e3, "": 1.0,
    "M": 1e-3, "U": 1e-6, "N": 1e-9, "P": 1e-12, "F": 1e-15, "A": 1e-18,
}  # fmt: skip
# Of these, nobody needs thousandths: M means mega.
_MEGA_UNITS = ("HZ", "OHM", "SA/S")


def short_form(mnemonic: str) -> str:
    """`EXTernal` becomes `EXT`, `CHANnel1` becomes `CHAN1`."""
    return re.sub("[a-z]", "", mnemonic)


def forms(mnemonic: str) -> tuple[str, str]:
    """The two ways to write a mnemonic, in capitals: short and long."""
    return short_form(mnemonic), mnemonic.upper()


class Argument:
    """One kind of argument. A kind with `takes_rest` gets all that are left in the list, at least one."""

    takes_rest: ClassVar[bool] = False

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> Any:
        """The value of one argument."""
        raise NotImplementedError

    def read_rest(self, tokens: list[Token], device: Any, suffixes: Sequence[int]) -> Any:
        """The value of all arguments that are left."""
        raise NotImplementedError

    def told(self, value: Any) -> Any:
        """What the query of a `setting` returns for a value that was read."""
        return value


def _text(token: Token) -> bytes:
    if isinstance(token, memoryview):
        raise ScpiError(-104)
    if not token:
        raise ScpiError(-109)
    return token


@dataclass(frozen=True)
class Number(Argument):
    """A number: `1.5`, `1E-3`, `10 KHZ`, `#H1F`, or one of the words `MINimum`, `MAXimum`, `DEFault`, `INFinity`.

    The method gets a float: infinity for `INF`, and `low` or `high` for `MIN` or `MAX`.

    Args:
        units: Those that may follow, the first one is meant if there is none: `"V"`, `("V", "VPP")`. Multipliers are
            accepted (`MV`, `KHZ`). M is a thousandth, except in `MHZ`, `MOHM` and `MSA/S`.
        low, high: Beyond them is -222. Infinite limits have no word `MIN` or `MAX`.
        default: What `DEF` means; None if there is no such word.
        infinity: Whether the word `INF` is accepted.
        words_only: Only the words. For queries such as `VOLTage? MAX`.
        clips: Beyond the limits, the limit is taken; -222 is in the error queue all the same.
    """

    units: str | tuple[str, ...] = ()
    low: Limit = -math.inf
    high: Limit = math.inf
    default: Limit | None = None
    infinity: bool = False
    words_only: bool = False
    clips: bool = False

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> float:
        """The value in the unit without a multiplier."""

        def resolved(limit: Limit) -> float:
            return limit(device, *suffixes) if callable(limit) else limit

        text = _text(token)
        if _CHARACTER_DATA.fullmatch(text):
            return self._word(text.decode().upper(), resolved)
        if self.words_only:
            raise ScpiError(-104)
        value = self._number(text)
        low, high = resolved(self.low), resolved(self.high)
        if low <= value <= high:
            return value
        if not self.clips:
            raise ScpiError(-222)
        side = "lower" if value < low else "upper"
        device.report(ScpiError(-222, f"Data out of range; value clipped to {side} limit"))
        return low if value < low else high

    def _word(self, word: str, resolved: Callable[[Limit], float]) -> float:
        words: dict[str, Limit | None] = {"MINimum": self.low, "MAXimum": self.high, "DEFault": self.default}
        for name, limit in words.items():
            if word in forms(name) and limit is not None and math.isfinite(value := resolved(limit)):
                return value
        if self.infinity and word in forms("INFinity"):
            return math.inf
        raise ScpiError(-104)

    def _number(self, text: bytes) -> float:
        if text[:1] == b"#" and (base := _OTHER_BASES.get(text[1:2].upper())):
            try:
                # int() takes more than SCPI does: signs, 1_000.
                return float(int(text[2:] if text[2:].isalnum() else b"", base))
            except ValueError:
                raise ScpiError(-121) from None
        if (match := _NUMBER.fullmatch(text)) is None:
            raise ScpiError(-121 if _NUMBER_BEGINS.match(text) else -104)
        number, unit = match.groups()
        return float(b"".join(number.split())) * (self._factor(unit) if unit else 1.0)

    def _factor(self, unit: bytes) -> float:
        wanted = unit.decode("latin-1").upper()
        units = (self.units,) if isinstance(self.units, str) else self.units
        if not units:
            raise ScpiError(-138)
        for known in units:
            multiplier = wanted.removesuffix(known.upper())
            if wanted.endswith(known.upper()) and multiplier in _MULTIPLIERS:
                mega = multiplier == "M" and known.upper() in _MEGA_UNITS
                return 1e6 if mega else _MULTIPLIERS[multiplier]
        # A number that something else follows: 1.5.2, 1e5x.
        raise ScpiError(-131 if wanted[0].isalpha() else -121)


@dataclass(frozen=True)
class Integer(Number):
    """As `Number`, rounded to a whole number as IEEE 488.2 asks for. Infinity stays a float."""

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> float:
        """An int, or infinity."""
        value = super().read(token, device, suffixes)
        return value if math.isinf(value) else math.floor(value + 0.5)


@dataclass(frozen=True)
class PerDivision(Number):
    """As `Number`, but the setting is that of the whole screen, and its command and query that of a division."""

    divisions: int = 10

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> float:
        """The value of all divisions together."""
        return super().read(token, device, suffixes) * self.divisions

    def told(self, value: float) -> float:
        """The value of one of them."""
        return value / self.divisions


@dataclass(frozen=True)
class Boolean(Argument):
    """`ON`, `OFF`, or a number, of which only 0 means off."""

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> bool:
        """True for on."""
        text = _text(token)
        if (word := text.upper()) in (b"ON", b"OFF"):
            return word == b"ON"
        if _CHARACTER_DATA.fullmatch(text):
            raise ScpiError(-224)
        return Integer().read(token, device, suffixes) != 0


class Keyword(Argument):
    """One of some words, in short or long form: `Keyword("IMMediate", "EXTernal", "BUS")`.

    The method gets the short form in capitals, as query answers have it: `"IMM"`. Other words are -224.
    """

    def __init__(self, *words: str) -> None:
        self._short = {form: short_form(word) for word in words for form in forms(word)}

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> str:
        """The short form."""
        text = _text(token)
        if not _CHARACTER_DATA.fullmatch(text):
            raise ScpiError(-104)
        try:
            return self._short[text.decode().upper()]
        except KeyError:
            raise ScpiError(-224) from None


@dataclass(frozen=True)
class String(Argument):
    """A text in quotes, in which a doubled quote means one.

    Args:
        longest: Longer texts are -223.
        bare: Whether a word without quotes is accepted, too, as for names of waveforms.
    """

    longest: int | None = None
    bare: bool = False

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> str:
        """The text without its quotes."""
        text = _text(token)
        if (quote := text[:1]) in (b'"', b"'"):
            if len(text) < 2 or not text.endswith(quote):
                raise ScpiError(-151)
            inner = text[1:-1]
            if quote in inner.replace(quote * 2, b""):
                raise ScpiError(-151)
            text = inner.replace(quote * 2, quote)
        elif not self.bare or not _CHARACTER_DATA.fullmatch(text):
            raise ScpiError(-104)
        if self.longest is not None and len(text) > self.longest:
            raise ScpiError(-223)
        return text.decode("latin-1")


@dataclass(frozen=True)
class Block(Argument):
    """Bytes as `#<n><length><bytes>`, or `#0<bytes>` up to the end of the message.

    The method gets a `memoryview` of the message, not a copy: `np.frombuffer(value, ">i2")`. It stays valid.
    """

    def read(self, token: Token, device: Any, suffixes: Sequence[int]) -> memoryview:
        """The bytes of the block."""
        if isinstance(token, memoryview):
            return token
        raise ScpiError(-109 if not token else -161 if token.startswith(b"#") else -104)


@dataclass(frozen=True)
class Numbers(Argument):
    """All arguments that are left, as numbers without units: `-8, -7, 1E3`.

    The method gets a float64 array (n,), n >= 1.

    Args:
        low, high: Beyond them is -222.
        or_block: Whether a block may stand in their place. The method then gets its `memoryview`.
    """

    low: Limit = -math.inf
    high: Limit = math.inf
    or_block: bool = False
    takes_rest: ClassVar[bool] = True

    def read_rest(self, tokens: list[Token], device: Any, suffixes: Sequence[int]) -> np.ndarray | memoryview:
        """The numbers, or the block."""
        if self.or_block and isinstance(tokens[0], memoryview):
            if len(tokens) > 1:
                raise ScpiError(-108)
            return tokens[0]
        texts = [_text(token) for token in tokens]
        try:
            # float() takes more than SCPI does: 1_000, nan.
            if not _ONLY_NUMBERS.fullmatch(b",".join(texts)):
                raise ValueError
            values = np.array([float(text) for text in texts])
        except ValueError:
            raise ScpiError(-104 if _CHARACTER_DATA.match(texts[0]) else -121) from None
        low, high = (limit(device, *suffixes) if callable(limit) else limit for limit in (self.low, self.high))
        if values.min() < low or values.max() > high:
            raise ScpiError(-222)
        return values


@dataclass(frozen=True)
class ListOf(Argument):
    """All arguments that are left, each of one kind: `ListOf(Keyword("CH1", "CH2"))`. The method gets a list."""

    kind: Argument
    takes_rest: ClassVar[bool] = True

    def read_rest(self, tokens: list[Token], device: Any, suffixes: Sequence[int]) -> list[Any]:
        """The values in their order."""
        return [self.kind.read(token, device, suffixes) for token in tokens]


def definite_block(data: bytes | memoryview, digits: int | None = None) -> bytes:
    """`#<n><length><bytes>`, for answers.

    Args:
        data: The bytes; `array.data` of a contiguous array.
        digits: How many digits the length has: `#800000005hello` with 8. By default as few as possible.
    """
    view = memoryview(data).cast("B")
    length = str(view.nbytes).zfill(digits or 1)
    return b"".join((f"#{len(length)}{length}".encode(), view))
