"""The host's side of docs/serial-protocol.md: a session with one board. It repairs nothing."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass

from reservoir_hw.core.errors import (
    DeviceDisconnected,
    DeviceError,
    DeviceTimeout,
    ProtocolError,
    ReservoirError,
)
from reservoir_hw.core.locks import while_busy
from reservoir_hw.drivers.codes import Code, exception_of
from reservoir_hw.drivers.serial.frames import (
    ANSWER,
    LEAST_FRAME_BYTES,
    NAK,
    RUN_BYTES,
    SHORTEST_BODY,
    Declaration,
    Frame,
    Operation,
    Status,
    declaration_of,
    frame_of,
    nak_of,
    on_line,
    place_of,
    status_of,
    stuffed_bytes,
)
from reservoir_hw.drivers.serial.line import Line

log = logging.getLogger(__name__)

# Until INFO is sent again, beyond the time that it and its answer take.
ASK_AGAIN_S = 0.1
LAST_NUMBER = 0xFFFF
# The first may be damaged. The second then has a number that is not due, and the next one is due after it.
_DETACHES = 3
LAST_STEP = 0xFFFFFFFF
_LINES_OF_TEXT = "A board that is told lines of text is of `kind: commands` (docs/commands.md)"


@dataclass
class Incidents:
    """What this end saw that should not happen: frames that were damaged, came twice, or answered nothing."""

    damaged: int = 0
    repeated: int = 0
    dropped: int = 0


_MEANING: dict[int, str] = {
    Code.VERSION: "the board does not speak this version of the protocol",
    Code.NO_SESSION: "the board no longer knows this session: it was restarted, or its lease has ended",
    Code.MALFORMED: "the board could not read the request",
    Code.CHECKSUM: "a request was damaged on its way",
    Code.SEQUENCE: "the board misses a request",
    Code.TOO_LARGE: "a request was longer than the board takes, or damaged on its way",
}
"""Of the codes that are about the protocol, and not about the device."""


def board_at(port: str, *, baud: int = 115200, timeout_s: float = 2.0) -> Declaration:
    """What the board at a port says about itself. Nobody's session is disturbed. Raises as `Connection`."""
    asking = Connection(port, baud=baud, timeout_s=timeout_s)
    asking.close()
    return asking.declaration


class Connection:
    """A board, and one session with it at a time: `attach` begins it, and `reset` another one after an error.

    Args:
        port, baud: As of `Line`.
        timeout_s: How long to wait for an answer, beyond the time that bytes and declared steps take.

    Raises (all methods): DeviceDisconnected, DeviceTimeout, ProtocolError, and what the board answered
    (`codes.exception_of`), in which `states` are bytes. `__init__` also ConfigurationError and DeviceBusy. While
    another program has the port, it waits as long as RESERVOIR_HW_WAIT_S of the environment says.
    """

    def __init__(self, port: str, *, baud: int = 115200, timeout_s: float = 3.0) -> None:
        self.port, self.timeout_s = port, timeout_s
        self.incidents = Incidents()
        # One question at a time: the heartbeat has some, too.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._heartbeat: threading.Thread | None = None
        self.last_status: Status
        self._session = self._number = self._step = 0
        self._asked = secrets.randbelow(LAST_NUMBER)
        self._heard = self._busy_until = 0.0
        self._echoed = self._is_silent = False
        # Why this end and the board are not in step, until the next ATTACH.
        self._failure: ReservoirError | None = None
        self._interrupted = DeviceTimeout(f"{port}: the last request was interrupted before its answer came")
        self._longest = LEAST_FRAME_BYTES
        self._line = while_busy(lambda: Line(port, baud, timeout_s))
        try:
            self.declaration = self._info()
            self._longest = self.declaration.frame_bytes
            self._line.wait_at_most(timeout_s + self._line.seconds(stuffed_bytes(self._longest)))
            # On a slow line the inputs must have come before the lease ends.
            in_time = int(self.declaration.lease_s / 2 / self._line.seconds(1)) - stuffed_bytes(RUN_BYTES)
            self.run_steps = max(1, min(self.declaration.run_steps, in_time // self.declaration.input_bytes))
            """The most steps of one `drive`."""
        except BaseException:
            self._line.close()
            raise

    # ---- a session ------------------------------------------------------------------------------

    def attach(self) -> None:
        """Take the board, at rest."""
        with self._lock:
            self._attach()
        self._heartbeat = threading.Thread(target=self._beat, name="serial heartbeat", daemon=True)
        self._heartbeat.start()

    def reset(self) -> None:
        """Bring the board to rest; after an error by a new session."""
        with self._lock:
            if self._failure is None:
                self._request(Operation.RESET, work_s=self.declaration.reset_time_s)
            else:
                self._attach()
            self._step = 0

    def drive(self, inputs: bytes, steps: int) -> bytes:
        """Drive so many steps from where the last one ended; their states. Numbers are written as declared."""
        declared = self.declaration
        with self._lock:
            if self._failure is not None:
                raise DeviceDisconnected(f"{self._failure}; reset() begins a new session")
            operation, place = place_of(self._step, steps)
            states = self._request(
                operation, place, inputs, answer_bytes=steps * declared.state_bytes,
                work_s=steps * (declared.step_period_s or 0.0),
            )  # fmt: skip
            self._step = (self._step + steps) & LAST_STEP
            return states

    def status(self) -> Status:
        """What the board says about itself."""
        with self._lock:
            return self._status(self._session)

    @property
    def in_step(self) -> bool:
        """Whether nothing has gone wrong since the last ATTACH."""
        return self._failure is None

    def close(self) -> None:
        """Say DETACH, so that the board goes to its safe state at once, and give the port back. Idempotent.

        Raises `DeviceFault` if the board says that it could not.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        try:
            if self._heartbeat is not None:
                self._heartbeat.join()
            # Also where nobody knows whether ATTACH came: a board that does not know this session says so.
            if self._session:
                self._detach()
        finally:
            self._line.close()

    # ---- how ------------------------------------------------------------------------------------

    def _info(self) -> Declaration:
        """What the board declares. It may be starting, so it is asked several times."""
        number = self._next_ask()
        request = on_line(Frame(Operation.INFO, 0, number))
        # A request that was interrupted may still be at work.
        began = time.monotonic()
        until = self._until(SHORTEST_BODY, LEAST_FRAME_BYTES, max(0.0, self._busy_until - began))
        self._line.drop()
        bytes_before, frames_before, self._echoed = self._line.received, self.incidents.dropped, False
        while (now := time.monotonic()) < until:
            self._line.send(request)
            again = now + ASK_AGAIN_S + self._on_the_line_s(SHORTEST_BODY, LEAST_FRAME_BYTES)
            answer = self._answer(Operation.INFO, 0, number, min(until, again), strict=False)
            if answer is None:
                continue
            try:
                return declaration_of(answer)
            except ProtocolError as error:
                raise ProtocolError(f"{self.port}: {error}") from error
        at = f"{self.port} at {self._line.baud} baud"
        if self._echoed:
            raise ProtocolError(f"{at} sends back what is sent to it: is its output wired to its own input?")
        if self.incidents.dropped > frames_before:
            raise ProtocolError(f"{at}: frames came, but no answer to INFO: does the line lose bytes?")
        if came := self._line.received - bytes_before:
            raise ProtocolError(
                f"{at}: {came} bytes came, and none was a frame: the board has another baud rate, or does not speak "
                f"this protocol. {_LINES_OF_TEXT}"
            )
        raise DeviceDisconnected(
            f"{at}: nobody answers within {until - began:.2g} s: is the board on, is it this port, this baud rate? "
            f"{_LINES_OF_TEXT}"
        )

    def _attach(self) -> None:
        """Begin a session: the board is at rest, and this end in step with it."""
        if self._session and (declared := self._info()) != self.declaration:
            raise ProtocolError(
                f"{self.port}: now a board answers that declares something else ({declared.vendor} "
                f"{declared.model} {declared.serial}); close() and open() it"
            )
        before = self._status(0)
        if before.problem:
            log.warning("%s: the board says: %s", self.port, before.problem)
        # An ATTACH with the number of a session that there is would count as a copy.
        taken = {self._session, before.session}
        while self._session in taken:
            self._session = secrets.randbelow(LAST_NUMBER) + 1
        self._ask(Operation.ATTACH, self._session, 0, work_s=self.declaration.reset_time_s)
        self._number, self._failure = 0, None

    def _detach(self) -> None:
        """Bring the board to its safe state, if it can be told to."""
        try:
            with self._lock:
                if self._is_silent and self._failure is not None:
                    raise self._failure
                self._say_detach()
        except (DeviceDisconnected, DeviceTimeout, ProtocolError) as error:
            log.warning(
                "%s; the board goes to its safe state by itself when it has heard nothing for %g s",
                error, self.declaration.lease_s,
            )  # fmt: skip

    def _say_detach(self) -> None:
        """End this session, in step with the board or not. A new one would wake a board that is in its safe state."""
        failure: ReservoirError = self._interrupted
        for _ in range(_DETACHES):
            self._number = (self._number + 1) & LAST_NUMBER
            try:
                working_s = max(0.0, self._busy_until - time.monotonic())
                self._ask(Operation.DETACH, self._session, self._number, work_s=working_s)
                return
            except (DeviceTimeout, ProtocolError) as error:
                failure = error
        raise failure

    def _beat(self) -> None:
        """Keep the lease while nothing is asked, and notice when the board has gone. After an error the lease ends."""
        pause = self.declaration.lease_s / 3
        while not self._closing.wait(max(0.0, self._heard + pause - time.monotonic())):
            with self._lock:
                if self._failure is not None:
                    self._heard = time.monotonic()
                elif time.monotonic() - self._heard >= pause:
                    try:
                        self._ask(Operation.PING, self._session, self._next_ask())
                    except ReservoirError as error:
                        self._failure = error

    def _status(self, session: int) -> Status:
        content = self._ask(Operation.STATUS, session, self._next_ask(), answer_bytes=self._longest)
        try:
            self.last_status = status_of(content)
        except ProtocolError as error:
            raise ProtocolError(f"{self.port}: {error}") from error
        return self.last_status

    def _next_ask(self) -> int:
        """A number for a question that is not counted, from 1 on."""
        self._asked = self._asked % LAST_NUMBER + 1
        return self._asked

    def _ask(
        self, operation: Operation, session: int, number: int, *, answer_bytes: int = SHORTEST_BODY, work_s: float = 0.0
    ) -> bytes:
        """The answer to a question that is not counted. What comes before it is dropped."""
        self._line.drop()
        self._line.send(on_line(Frame(operation, session, number)))
        until = self._until(SHORTEST_BODY, answer_bytes, work_s)
        if (answer := self._answer(operation, session, number, until, strict=False)) is None:
            raise self._silent(operation)
        return answer

    def _request(
        self,
        operation: Operation,
        place: bytes = b"",
        inputs: bytes = b"",
        *,
        answer_bytes: int = 0,
        work_s: float = 0.0,
    ) -> bytes:
        """What the answer to a counted request says behind its `place`. Whatever else comes is an error."""
        self._number = number = (self._number + 1) & LAST_NUMBER
        self._failure = self._interrupted
        try:
            self._line.drop()
            self._line.send(on_line(Frame(operation, self._session, number, place + inputs)))
            self._busy_until = self._until(RUN_BYTES + len(inputs), RUN_BYTES + answer_bytes, work_s)
            content = self._answer(operation, self._session, number, self._busy_until, strict=True)
            if content is None:
                raise self._silent(operation)
            if not content.startswith(place) or len(content) != len(place) + answer_bytes:
                raise ProtocolError(f"{self.port}: the answer to {operation.name} has another step, or another length")
        except ReservoirError as error:
            self._failure = error
            raise
        self._failure = None
        return content[len(place) :]

    def _until(self, sent: int, answered: int, work_s: float) -> float:
        """When an answer must have come: bodies of so many bytes, and the work between them."""
        return time.monotonic() + self.timeout_s + self._on_the_line_s(sent, answered) + work_s

    def _on_the_line_s(self, sent: int, answered: int) -> float:
        return self._line.seconds(stuffed_bytes(sent) + stuffed_bytes(answered))

    def _answer(self, operation: Operation, session: int, number: int, until: float, *, strict: bool) -> bytes | None:
        """What the answer says, or None if it has not come. Raises what the board answered instead.

        If it is `strict`, whatever else comes is an error, but a copy.
        """
        longest = stuffed_bytes(self._longest)
        while True:
            try:
                if (data := self._line.receive(until, longest)) is None:
                    return None
                frame = frame_of(data)
            except ProtocolError as error:
                self.incidents.damaged += 1
                if strict:
                    raise ProtocolError(f"{self.port}: {error}") from error
                continue
            if frame.session == session and frame.number == number:
                self._is_silent = False
                if frame.operation == operation | ANSWER:
                    self._heard = time.monotonic()
                    return frame.content
                if frame.operation == NAK:
                    raise self._refused(frame.content)
                self._echoed |= frame.operation == operation
            self._set_aside(frame, number, strict)

    def _set_aside(self, frame: Frame, number: int, strict: bool) -> None:
        """Count a frame that is not the answer, or raise what it means."""
        if not strict:
            self.incidents.dropped += 1
        elif frame.session == self._session and 0 < (number - frame.number) & LAST_NUMBER <= LAST_NUMBER // 2:
            self.incidents.repeated += 1
        elif frame[:3] == (NAK, 0, 0):
            # The board could not trust any field of what came.
            raise self._refused(frame.content)
        else:
            raise ProtocolError(
                f"{self.port}: operation {frame.operation:#x} of session {frame.session:#x}, number {frame.number}, "
                f"came instead of the answer to request {number} of session {self._session:#x}: something was lost"
            )

    def _refused(self, content: bytes) -> ReservoirError:
        """What a NAK stands for; a `DeviceError` has the states that came with it, as bytes."""
        try:
            nak = nak_of(content)
        except ProtocolError as error:
            return ProtocolError(f"{self.port}: {error}")
        # What the board says of the protocol is for those who build it.
        meaning = _MEANING.get(nak.code)
        text = f"{meaning} ({nak.text})" if meaning and nak.text else meaning or nak.text or "the board gives no reason"
        error = exception_of(nak.code, f"{self.port}: {text}", nak.step)
        if isinstance(error, DeviceError):
            error.steps_done, error.states = nak.steps_done, nak.states
        return error

    def _silent(self, operation: Operation) -> DeviceError:
        """What it means that no answer has come. The board is asked."""
        said = f"{self.port}: no answer to {operation.name} came in time"
        if operation is not Operation.PING:
            number, before = self._next_ask(), self._line.received
            self._line.send(on_line(Frame(Operation.PING, self._session, number)))
            until = self._until(SHORTEST_BODY, self._longest, 0.0)
            answer = self._answer(Operation.PING, self._session, number, until, strict=False)
            # Behind half a frame the answer to PING is damaged, too.
            if answer is not None or self._line.received > before:
                return DeviceTimeout(
                    f"{said}, but the board is there: the request or its answer was lost, or takes longer than the "
                    "board declares"
                )
            said += ", and none to PING"
        self._is_silent = True
        return DeviceDisconnected(f"{said}: the board is gone: unplugged, without power, or at another baud rate")
