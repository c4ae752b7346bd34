"""The base class of emulated instruments: messages in, answers out, with the status model of IEEE 488.2."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from reservoir_hw.emulators.scpi.messages import ErrorQueue, Integer, ScpiError
from reservoir_hw.emulators.scpi.tree import Call, CommandTree, command, constant, query, setting

log = logging.getLogger(__name__)

REGISTER = Integer(low=0, high=255)
OPERATION_COMPLETE, POWER_ON = 0x01, 0x80
ERRORS_AVAILABLE, EVENT_SUMMARY, MASTER_SUMMARY = 0x04, 0x20, 0x40
# How often a waiting instrument looks whether somebody has cleared it.
WAIT_S = 0.01


class _Cancelled(Exception):
    """The client has cleared the device, or gone, while a command was waiting."""


def _never() -> bool:
    return False


class MessageDevice:
    """An instrument as of IEEE 488.2. Subclasses declare commands as `tree` has it, and override the hooks.

    A message is carried out as a whole before the next one, whoever sent it. A command that cannot be understood (-1xx)
    ends its message; after other errors the rest of the message is carried out.
    """

    identity: str = "reservoir_hw,SCPI device,0,1.0"
    """The answer to `*IDN?`: manufacturer, model, serial number, version."""
    number_format: ClassVar[str] = "+.15E"
    """Of the floats in its answers: by default `+1.5E+00` (NR3)."""
    _tree: ClassVar[CommandTree]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._tree = CommandTree(cls)

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._errors = ErrorQueue()
        self._events = POWER_ON
        self._event_enable = 0
        self._service_enable = 0
        self._operation_complete_wanted = False
        self._cancelled = _never

    # ---- for servers ----------------------------------------------------------------------------

    def execute(self, message: bytes | bytearray, cancelled: Callable[[], bool] = _never) -> bytes:
        """Carry out a program message and return the answer.

        May be called from several threads. A `ConnectionError` that a command raises is not caught: a server then
        closes the connection.

        Args:
            message: Without its terminator. It must not be changed afterwards: blocks are not copied.
            cancelled: Asked while `*OPC?` and `*WAI` wait. When it is true they end, and so does the message, without
                an answer.

        Returns:
            The answers of all queries, joined by `;`, without a terminator; `b""` if there is none.
        """
        log.debug("> %r", message[:80])
        answers: list[bytes] = []
        with self._lock:
            self._cancelled = cancelled
            try:
                indefinite = False
                for call in self._tree.calls(message):
                    if call.declared.is_query and indefinite:
                        raise ScpiError(-440)
                    self._perform(call, answers)
                    indefinite = indefinite or call.declared.indefinite
            except ScpiError as error:
                self.report(error)
            except _Cancelled:
                answers.clear()
        answer = answers[0] if len(answers) == 1 else b";".join(answers)
        log.debug("< %r", answer[:80])
        return answer

    def _perform(self, call: Call, answers: list[bytes]) -> None:
        try:
            value = call.perform(self)
        except ScpiError as error:
            if error.is_command_error:
                raise
            self.report(error)
        else:
            if call.declared.is_query:
                answers.append(self.response(call, value))

    def report(self, error: ScpiError) -> None:
        """Put an error into the queue, and its class into the standard event status register."""
        log.debug("error %s", error)
        with self._lock:
            self._errors.add(error)
            self._events |= error.event_bit

    def status_byte(self) -> int:
        """The status byte without the bit MAV, which belongs to a connection. Never waits for a running command."""
        status = self._own_summary() | (EVENT_SUMMARY if self._standard_events() & self._event_enable else 0)
        return status | (MASTER_SUMMARY if status & self._service_enable else 0)

    # ---- hooks ----------------------------------------------------------------------------------

    def reset(self) -> None:
        """`*RST`: all settings to their defaults."""

    def trigger(self) -> None:
        """`*TRG`, and the trigger message of HiSLIP."""
        raise ScpiError(-211)

    def operation_complete(self, timeout_s: float) -> bool:
        """Wait until pending operations have ended, but not longer than `timeout_s`; return whether they have.

        Used by `*OPC?` and `*WAI` again and again, and by `*OPC` with 0. May be called from several threads.
        """
        return True

    def response(self, call: Call, value: Any) -> bytes:
        """What a query sends: the answer, without a header."""
        return self.answer(value)

    def answer(self, value: Any) -> bytes:
        """A query's value as it is sent: bytes and text unchanged, truth as 1 or 0, floats in its format."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, bool):
            return b"1" if value else b"0"
        if isinstance(value, float):
            return f"{value:{self.number_format}}".encode()
        return str(value).encode("latin-1")

    # ---- common commands ------------------------------------------------------------------------

    common_identity = query("*IDN", indefinite=True)(lambda self: self.identity)

    @command("*CLS")
    def common_clear_status(self) -> None:
        """`*CLS` empties the error queue and the event register."""
        self._errors.clear()
        self._events = 0
        self._operation_complete_wanted = False

    @command("*RST")
    def common_reset(self) -> None:
        """`*RST`."""
        self._operation_complete_wanted = False
        self.reset()

    common_trigger = command("*TRG")(lambda self: self.trigger())

    common_self_test = constant("*TST", 0)

    @command("*WAI")
    def common_wait(self) -> None:
        """`*WAI`: what follows waits for pending operations."""
        while not self.operation_complete(WAIT_S):
            if self._cancelled():
                raise _Cancelled

    @command("*OPC")
    def common_operation_complete(self) -> None:
        """`*OPC`: the event register will say when pending operations have ended."""
        self._operation_complete_wanted = True

    @query("*OPC")
    def common_wait_for_completion(self) -> str:
        """`*OPC?` answers when pending operations have ended."""
        self.common_wait()
        return "1"

    @query("*ESR")
    def common_events(self) -> int:
        """`*ESR?` answers the standard event status register and clears it."""
        events = self._standard_events()
        self._events = 0
        return events

    common_event_enable = setting("*ESE", REGISTER, "_event_enable")

    common_status_byte = query("*STB")(lambda self: self.status_byte())

    common_service_enable = setting("*SRE", REGISTER, "_service_enable", kept=lambda mask: mask & ~MASTER_SUMMARY)
    """Bit 6 means nothing there."""

    def _own_summary(self) -> int:
        """Bits of the status byte that IEEE 488.2 leaves to the instrument."""
        return 0

    def _standard_events(self) -> int:
        """The register. Whether `*OPC` is due is looked at when somebody asks."""
        if self._operation_complete_wanted and self.operation_complete(0.0):
            self._operation_complete_wanted = False
            self._events |= OPERATION_COMPLETE
        return self._events


class ScpiDevice(MessageDevice):
    """An instrument of SCPI-99: IEEE 488.2, and the error queue."""

    error_format: ClassVar[str] = '{0.code},"{0.text}"'
    """Of an entry of the error queue, as `SYSTem:ERRor?` answers it; code 0 if the queue is empty."""

    def _own_summary(self) -> int:
        return ERRORS_AVAILABLE if len(self._errors) else 0

    system_error = query("SYSTem:ERRor[:NEXT]")(lambda self: self.error_format.format(self._errors.take()))
    """Removes the oldest error from the queue."""

    system_version = constant("SYSTem:VERSion", "1999.0")
    """The edition of SCPI."""
