"""The board itself: requests in, answers out, byte by byte, and its virtual nodes in integers. It says and does what
docs/serial-protocol.md says.
"""

from __future__ import annotations

import binascii
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.bench import EventLog


class Damaged(Exception):
    """A frame whose COBS or checks are wrong, or that is too short for them and a header."""


class TooLong(Exception):
    """A frame whose body is longer than the board's buffer."""


HEADER_BYTES, CRC16_BYTES, CRC32_BYTES = 6, 2, 4
CHECK_BYTES = CRC16_BYTES + CRC32_BYTES
# STEP, RUN, their answers, and NAK.
_WITH_CRC32 = (0x05, 0x06, 0x85, 0x86, 0xFF)
_FULL_BLOCK = 254


def framed(body: bytes) -> bytes:
    """A body without its checks -> what is on the line, with the byte 0 behind it."""
    if body[1] in _WITH_CRC32:
        body += zlib.crc32(body).to_bytes(CRC32_BYTES, "little")
    line, whole = bytearray(), body + binascii.crc_hqx(body, 0xFFFF).to_bytes(CRC16_BYTES, "little")
    blocks = whole.split(b"\0")
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        while len(block) >= _FULL_BLOCK:
            line += b"\xff" + block[:_FULL_BLOCK]
            block = block[_FULL_BLOCK:]
            if is_last and not block:
                return bytes(line) + b"\0"
        line.append(len(block) + 1)
        line += block
    return bytes(line) + b"\0"


def body_of(line: bytes, frame_bytes: int) -> bytes:
    """A frame without its byte 0 -> its body without the checks.

    Raises `TooLong` for a body of more than `frame_bytes` bytes with its checks, and `Damaged`.
    """
    body, at, has_zero = bytearray(), 0, False
    while at < len(line):
        if has_zero:
            body.append(0)
        code = line[at]
        block = line[at + 1 : at + code]
        body += block
        if len(body) > frame_bytes:
            raise TooLong
        if len(block) < code - 1:
            raise Damaged
        at, has_zero = at + code, code <= _FULL_BLOCK
    whole, crc16 = body[:-CRC16_BYTES], int.from_bytes(body[-CRC16_BYTES:], "little")
    if len(whole) < HEADER_BYTES or binascii.crc_hqx(whole, 0xFFFF) != crc16:
        raise Damaged
    if whole[1] not in _WITH_CRC32:
        return bytes(whole)
    whole, crc32 = whole[:-CRC32_BYTES], int.from_bytes(whole[-CRC32_BYTES:], "little")
    if len(whole) < HEADER_BYTES or zlib.crc32(whole) != crc32:
        raise Damaged
    return bytes(whole)


class Splitter:
    """Cuts what comes over a line into frames, each without its byte 0. Empty frames are left out.

    Of a frame that has no end only so much is kept as tells that it is longer than `frame_bytes`.
    """

    def __init__(self, frame_bytes: int) -> None:
        self._most = frame_bytes + frame_bytes // _FULL_BLOCK + 3
        self._begun = bytearray()

    def take(self, data: bytes) -> Iterator[bytes]:
        """The frames that end in `data`."""
        *ended, begun = data.split(b"\0")
        for end in ended:
            self._keep(end)
            if self._begun:
                yield bytes(self._begun)
            self._begun.clear()
        self._keep(begun)

    def _keep(self, data: bytes) -> None:
        self._begun += data[: self._most - len(self._begun)]


# ---- The device of the emulated boards: virtual nodes of a Mackey-Glass delay loop, in integers alone.
#
# Numbers are Q1.14: the integer 16384 is 1.0, and an int16 holds -2 to 2. For node i at step n, all divisions rounded
# towards zero (Appeltant et al. 2011, p = 1, with the exponentials as constants):
#
#     s_i  = clip(sum_j m_ij u_j(n))                       m_ij = ±1
#     z_i  = clip(x_i(n - 1) + gamma s_i / 2^14)           clip to ±(2^16 - 1)
#     f_i  = eta z_i / (2^14 + |z_i|)
#     x_i  = (decay x_(i-1)(n) + (2^14 - decay) f_i) / 2^14,    x_(-1)(n) = x_(N-1)(n - 1)
#
# Each product fits into an int32, so that a microcontroller computes it as it stands. The same equations in C are in
# `hardware/virtual_nodes.h`; its states are equal to the last bit.


ONE = 1 << 14
SCALE = 1.0 / ONE
"""Value of one count of inputs and states."""
ETA, GAMMA = 15500, 2048
"""Strengths of the nonlinearity and of the inputs; 16384 is 1."""
DECAY = 13414
"""What a node keeps of its neighbour, exp(-theta)."""
SEED = 1
"""Of the mask."""
_WIDEST = (1 << 16) - 1


class VirtualNodes:
    """A board's device, of so many nodes and inputs. It is at rest when it is made."""

    def __init__(self, nodes: int = 50, inputs: int = 1) -> None:
        self.nodes, self.inputs = nodes, inputs
        self._mask = mask(nodes, inputs, SEED)
        self.content = f"VN {ETA} {GAMMA} {DECAY} {SEED}"
        """What decides about its states, as boards declare it."""
        self.reset()

    def reset(self) -> None:
        """Back to rest: all nodes are 0."""
        self._states = np.zeros(self.nodes, np.int64)

    def step(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """One period: int16 inputs (inputs,) -> int16 states (nodes,)."""
        driven = np.clip(self._mask @ np.asarray(counts, np.int64), -_WIDEST, _WIDEST)
        z = np.clip(self._states + _divided(GAMMA * driven, ONE), -_WIDEST, _WIDEST)
        forced = (ONE - DECAY) * _divided(ETA * z, ONE + np.abs(z))
        last, states = int(self._states[-1]), []
        for force in forced.tolist():
            total = DECAY * last + force
            last = total // ONE if total >= 0 else -(-total // ONE)
            states.append(last)
        self._states = np.array(states, np.int64)
        return self._states.astype(np.int16)

    def run(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """int16 inputs (time, inputs) -> int16 states (time, nodes), from where the last step ended."""
        return np.array([self.step(row) for row in counts], np.int16).reshape(-1, self.nodes)


def mask(nodes: int, inputs: int, seed: int) -> NDArray[np.int64]:
    """Signs (nodes, inputs), drawn row by row: bit 31 of xorshift32 (13, 17, 5; Marsaglia 2003) means -1."""
    signs, word = [], seed
    for _ in range(nodes * inputs):
        word ^= word << 13 & 0xFFFFFFFF
        word ^= word >> 17
        word ^= word << 5 & 0xFFFFFFFF
        signs.append(-1 if word >> 31 else 1)
    return np.array(signs, np.int64).reshape(nodes, inputs)


def _divided(numbers: NDArray[np.int64], by: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Rounded towards zero, as C does it."""
    return np.sign(numbers) * (np.abs(numbers) // by)


# ---- The board itself: bytes of requests in, bytes of answers out. It says and does what docs/serial-protocol.md says.


VERSION = 1
ANSWER, NAK = 0x80, 0xFF
_RUN_HEAD = struct.Struct("<IH")
_STEP_HEAD = struct.Struct("<I")
_NAK_HEAD = struct.Struct("<BBIHB")
_INT16 = 3
_DETERMINISTIC, _SIMULATED = 1, 2
# The output of the log that stands for the drive of the device.
_DRIVE = 1


class Operation(IntEnum):
    """Codes of the requests."""

    PING = 1
    INFO = 2
    ATTACH = 3
    RESET = 4
    STEP = 5
    RUN = 6
    STATUS = 7
    DETACH = 8


class State(IntEnum):
    """What STATUS says first."""

    SAFE = 0
    AT_REST = 1
    DRIVEN = 2
    STATE_LOST = 3
    FAULT = 4


class Code(IntEnum):
    """Codes of a NAK."""

    VERSION = 1
    NO_SESSION = 3
    MALFORMED = 4
    CHECKSUM = 5
    SEQUENCE = 6
    INPUT_RANGE = 8
    TOO_LARGE = 9
    NOT_SUPPORTED = 10
    STATE_LOST = 11
    DISCONTINUITY = 12
    DEVICE_FAULT = 13
    DEVICE_TIMEOUT = 14
    DEVICE_DISCONNECTED = 19


_TEXTS = {
    Code.VERSION: "version 1 only",
    Code.NO_SESSION: "ATTACH first",
    Code.MALFORMED: "malformed",
    Code.CHECKSUM: "",
    Code.SEQUENCE: "out of sequence",
    Code.INPUT_RANGE: "input out of range",
    Code.TOO_LARGE: "too large",
    Code.NOT_SUPPORTED: "no such operation",
    Code.STATE_LOST: "RESET first",
}


class DeviceProblem(Exception):
    """What a device raises that cannot do its step."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class Device(Protocol):
    """What a board drives. Inputs and states are int16 counts."""

    nodes: int
    inputs: int

    def reset(self) -> None:
        """Back to rest."""

    def step(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.int16]:
        """One period: inputs (inputs,) -> states (nodes,). Raises `DeviceProblem`."""
        ...


@dataclass(eq=False)
class _Refused(Exception):
    """A request gets a NAK."""

    code: Code
    text: str
    step: int
    loses_state: bool = False
    states: tuple[NDArray[np.int16], ...] = ()


class Board:
    """A board that has just been switched on.

    Args:
        device: What it drives.
        content: What INFO says of the device, at most 31 bytes.
        frame_bytes: The longest body, 256 to 65535.
        lease_ms: So long it drives on without hearing from its host, 100 to 65535.
        input_range: Lowest and highest count of an input.
        log: Gets an event `on` when a session begins, and `off`, with `why`, when the device goes to its safe state.
        clock: In seconds.

    Raises `ConfigurationError` if a step does not fit into a frame.
    """

    def __init__(
        self,
        device: Device,
        *,
        content: str = "",
        frame_bytes: int = 4095,
        lease_ms: int = 2000,
        input_range: tuple[int, int] = (-32768, 32767),
        log: EventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        room = frame_bytes - HEADER_BYTES - CHECK_BYTES
        width = 2 * max(device.inputs, device.nodes)
        if room - _STEP_HEAD.size < width:
            raise ConfigurationError(
                f"a step of {device.inputs} inputs and {device.nodes} nodes does not fit into a frame of {frame_bytes} "
                "bytes: choose fewer, or longer frames"
            )
        self.frame_bytes, self.lease_ms = frame_bytes, lease_ms
        # A NAK after all steps but one must have room for them, too.
        self.run_steps = (room - _NAK_HEAD.size) // width
        self._device, self._content, self._input_range = device, content, input_range
        self._log, self._clock = log or EventLog(), clock
        self.sessions = 0
        """That began since the board was made."""
        self.power_on()

    @property
    def said(self) -> str:
        """What became of it, in a word."""
        return f"Sessions: {self.sessions}"

    def power_on(self) -> None:
        """Forget everything, as when the supply has failed."""
        self._since = self._clock()
        self._splitter = Splitter(self.frame_bytes)
        self._frames = self._damaged = self._too_long = self._copies = self._leases_ended = 0
        self.go_safe("power on")

    def take(self, data: bytes) -> bytes:
        """What comes over the line -> what the board sends."""
        return b"".join(self._answer_to(line) for line in self._splitter.take(data))

    def lease_left_s(self) -> float | None:
        """Until the board goes to its safe state, or None without a session."""
        return self._heard + self.lease_ms / 1000 - self._clock() if self._session else None

    def look_at_lease(self) -> None:
        """Go to the safe state if the host has been silent for too long."""
        left_s = self.lease_left_s()
        if left_s is not None and left_s <= 0:
            self._leases_ended += 1
            self.go_safe("lease")

    # ---- frames ---------------------------------------------------------------------------------

    def _answer_to(self, line: bytes) -> bytes:
        try:
            body = body_of(line, self.frame_bytes)
        except TooLong:
            self._too_long += 1
            return self._nak(0, 0, self._refusal(Code.TOO_LARGE))
        except Damaged:
            self._damaged += 1
            return self._nak(0, 0, self._refusal(Code.CHECKSUM))
        self._frames += 1
        version, code, session, number = struct.unpack_from("<BBHH", body)
        if version != VERSION:
            return self._nak(session, number, self._refusal(Code.VERSION))
        if code & ANSWER:
            return b""
        try:
            answer = self._carried_out(code, session, number, body[HEADER_BYTES:])
        except _Refused as refused:
            self._lost |= refused.loses_state
            answer = self._nak(session, number, refused)
        else:
            if answer is not None:
                answer = framed(struct.pack("<BBHH", VERSION, code | ANSWER, session, number) + answer)
        if session == self._session:
            self._heard = self._clock()
        return answer or b""

    def _nak(self, session: int, number: int, refused: _Refused) -> bytes:
        states = b"".join(row.astype("<i2").tobytes() for row in refused.states)
        room = self.frame_bytes - HEADER_BYTES - _NAK_HEAD.size - len(states) - CHECK_BYTES
        text = refused.text.encode()[: min(room, 255)]
        what = _NAK_HEAD.pack(refused.code, self._lost, refused.step, len(refused.states), len(text))
        return framed(struct.pack("<BBHH", VERSION, NAK, session, number) + what + text + states)

    def _refusal(self, code: Code, *, loses_state: bool = False) -> _Refused:
        return _Refused(code, _TEXTS[code], self._step, loses_state)

    # ---- requests -------------------------------------------------------------------------------

    def _carried_out(self, code: int, session: int, number: int, rest: bytes) -> bytes | None:
        """What follows in the answer; None for a copy."""
        try:
            operation = Operation(code)
        except ValueError:
            raise self._refusal(Code.NOT_SUPPORTED) from None
        if operation in (Operation.PING, Operation.INFO, Operation.STATUS):
            if rest:
                raise self._refusal(Code.MALFORMED)
            return {Operation.PING: bytes, Operation.INFO: self._info, Operation.STATUS: self._status}[operation]()
        if operation is Operation.ATTACH:
            return self._attach(session, number, rest)
        if session != self._session or not session:
            raise self._refusal(Code.NO_SESSION)
        if number == self._last_number:
            self._copies += 1
            return None
        is_due = number == (self._last_number + 1) % (1 << 16)
        self._last_number = number
        if not is_due:
            raise self._refusal(Code.SEQUENCE, loses_state=True)
        if operation in (Operation.STEP, Operation.RUN):
            return self._driven(operation, rest)
        if rest:
            raise self._refusal(Code.MALFORMED, loses_state=True)
        if operation is Operation.RESET:
            self._rest()
        else:
            self.go_safe("detach")
        return b""

    def _attach(self, session: int, number: int, rest: bytes) -> bytes | None:
        if session == self._session and session:
            self._copies += 1
            return None
        if not session or number or rest:
            raise self._refusal(Code.MALFORMED)
        self._session, self._last_number = session, 0
        self.sessions += 1
        self._rest()
        self._heard = self._clock()
        self._write("on", session=session)
        return b""

    def _driven(self, operation: Operation, rest: bytes) -> bytes:
        if operation is Operation.RUN and not self.run_steps:
            raise self._refusal(Code.NOT_SUPPORTED)
        if self._lost:
            raise self._refusal(Code.STATE_LOST)
        head = _STEP_HEAD if operation is Operation.STEP else _RUN_HEAD
        if len(rest) < head.size:
            raise self._refusal(Code.MALFORMED, loses_state=True)
        first, steps = (*head.unpack_from(rest), 1)[:2]
        if steps > self.run_steps and operation is Operation.RUN:
            raise self._refusal(Code.TOO_LARGE)
        if not steps or len(rest) != head.size + 2 * steps * self._device.inputs:
            raise self._refusal(Code.MALFORMED, loses_state=True)
        if first != self._step:
            raise self._refusal(Code.SEQUENCE, loses_state=True)
        counts = np.frombuffer(rest, "<i2", offset=head.size).reshape(steps, self._device.inputs)
        low, high = self._input_range
        outside = np.flatnonzero(((counts < low) | (counts > high)).any(axis=1))
        if outside.size:
            raise _Refused(Code.INPUT_RANGE, _TEXTS[Code.INPUT_RANGE], first + int(outside[0]))
        return rest[: head.size] + b"".join(row.astype("<i2").tobytes() for row in self._steps(counts))

    def _steps(self, counts: NDArray[np.int16]) -> list[NDArray[np.int16]]:
        states: list[NDArray[np.int16]] = []
        for row in counts:
            try:
                states.append(self._device.step(row))
            except DeviceProblem as problem:
                if problem.code is not Code.DISCONTINUITY:
                    self._problem = problem.text
                raise _Refused(problem.code, problem.text, self._step, True, tuple(states)) from problem
            self._step = (self._step + 1) % (1 << 32)
        return states

    # ---- the device -----------------------------------------------------------------------------

    def _rest(self) -> None:
        self._device.reset()
        self._step, self._lost, self._problem = 0, False, ""

    def go_safe(self, why: str) -> None:
        """At rest and off, without a session; the log says why."""
        self._rest()
        self._session = self._last_number = 0
        self._heard = self._clock()
        self._write("off", why=why)

    def _write(self, event: str, **details: Any) -> None:
        self._log.write(event, _DRIVE, self._clock() - self._since, **details)

    # ---- what the board says of itself ----------------------------------------------------------

    def _info(self) -> bytes:
        low, high = (count * SCALE for count in self._input_range)
        numbers = struct.pack(
            "<BBHHHHHHBBBBffffff",
            *(VERSION, VERSION),
            *(self._device.inputs, self._device.nodes, self.frame_bytes, self.run_steps, self.lease_ms, 0),
            *(_INT16, _INT16, 0, _DETERMINISTIC | _SIMULATED),
            *(SCALE, SCALE, low, high, 0.001, 0.001),
        )
        texts = ("reservoir_hw", "virtual nodes", "emulated", "1", self._content)
        return numbers + b"".join(text.encode() + b"\0" for text in texts)

    def _status(self) -> bytes:
        if not self._session:
            state = State.SAFE
        elif self._lost:
            state = State.FAULT if self._problem else State.STATE_LOST
        else:
            state = State.DRIVEN if self._step else State.AT_REST
        uptime_ms = int(1000 * (self._clock() - self._since)) % (1 << 32)
        counts = (self._frames, self._damaged, self._too_long, self._copies, self._leases_ended)
        numbers = struct.pack("<BHIIIIIII", state, self._session, self._step, uptime_ms, *counts)
        room = self.frame_bytes - HEADER_BYTES - CHECK_BYTES - len(numbers) - 1
        return numbers + self._problem.encode()[:room] + b"\0"
