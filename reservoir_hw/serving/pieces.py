"""A run that comes in several messages: each is taken up as it comes, and all are answered in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from reservoir_hw.core.errors import DeviceError, Discontinuity, text_of
from reservoir_hw.drivers.error_codes import Code, Refusal, sendable
from reservoir_hw.drivers.zeromq.frames import Flag, Header, Operation, name_of
from reservoir_hw.serving.data_socket import DataSocket
from reservoir_hw.serving.lease import Work

WHOLE_RUN_BYTES = 1 << 32
"""Inputs of a run that is collected, as they travel."""


class Pieces:
    """One run in pieces, of which the message `first` with the inputs `u`, of `size` bytes, was taken up.

    `inputs_of` reads the inputs of a further message, `answer` sends states and says whether they could be sent.
    """

    def __init__(
        self,
        data: DataSocket,
        first: Header,
        u: np.ndarray,
        size: int,
        *,
        inputs_of: Callable[[Header, memoryview], np.ndarray],
        answer: Callable[[Header, Any, int], bool],
        stop: threading.Event,
    ) -> None:
        self._data, self._reservoir, self._lease, self._seat = data, data.reservoir, data.lease, data.seat
        self._first, self._u, self._size = first, u, size
        self._inputs_of, self._answer, self._stop = inputs_of, answer, stop
        self._taken = [first]
        """Messages that were taken up and not answered."""
        self._began, self._began_ns = time.monotonic(), time.time_ns()
        self._collects = False

    def stream(self) -> None:
        """A device with its own clock is given each piece as soon as all of it is here, and no later than it is due."""
        with self._data.in_order():
            self._deliver(self._reservoir.stream(self._as_they_come()))

    def collect(self) -> None:
        """A device that must have the whole run is driven when all of it is here."""
        self._collects = True
        with self._data.in_order(slots=False):
            self._deliver(self._at_once())

    def _as_they_come(self) -> Iterator[np.ndarray]:
        first, period_s = self._first, self._reservoir.spec.step_period_s
        given, latest, size = first.steps, first.request, self._size
        yield self._u
        more = first.flags & Flag.MORE
        while more:
            if self._stop.is_set():
                raise Refusal(Code.SHUTTING_DOWN, "the server is shutting down")
            if self._lease.number != self._seat.attached or self._lease.expired():
                raise Refusal(Code.CANCELLED, "the client has left in the middle of a run")
            if self._lease.is_cancelled(latest):
                raise Refusal(Code.CANCELLED, "cancelled by the client")
            if self._seat.lost is not None:
                raise Refusal(Code.STATE_LOST, self._seat.lost)
            self._lease.wait()
            message = self._data.next()
            if message is None:
                underrun = period_s and not self._collects and time.monotonic() > self._began + given * period_s
                if underrun and self._seat.lost is None:
                    self._reservoir.counters.underruns += 1
                    raise Discontinuity(
                        f"discontinuity at step {first.step + given}: its inputs were not there when they were due",
                        step=first.step + given,
                    )
                continue
            header, payload = message
            if self._lease.is_cancelled(latest) or header.session != self._first.session:
                # Meanwhile: what came is the first request after this run.
                self._data.keep(header, payload)
                raise Refusal(Code.CANCELLED, "cancelled by the client")
            latest, size = header.request, size + len(payload)
            # Steps that were taken up and not answered.
            ahead = sum(one.steps for one in self._taken)
            self._taken.append(header)
            if header.operation != Operation.RUN:
                raise Refusal(Code.SEQUENCE, f"{name_of(header.operation)} in the middle of a run")
            if self._collects and size > WHOLE_RUN_BYTES:
                raise Refusal(Code.TOO_LARGE, f"a whole run has more than {WHOLE_RUN_BYTES} bytes of inputs")
            values = self._inputs_of(header._replace(step=header.step - ahead), payload)
            more = header.flags & Flag.MORE
            given += header.steps
            yield values

    def _at_once(self) -> Iterator[np.ndarray]:
        """The states of each message, of one run of them all; as many as are whole come before a fault."""
        whole = np.concatenate(list(self._as_they_come()), axis=1)
        ends = list(accumulate(header.steps for header in self._taken))
        last = self._taken[-1]
        # What the device is busy with is all of it.
        self._lease.begin(Work(last.request, last.operation, last.batch, ends[-1]))
        self._began_ns = time.time_ns()
        done = 0
        try:
            states = np.asarray(self._reservoir.run(whole))
        except DeviceError as fault:
            if fault.states is not None:
                good = np.asarray(fault.states)[:, : fault.steps_done]
                for end in ends:
                    if end <= good.shape[1]:
                        yield good[:, done:end]
                        done = end
                fault.states, fault.steps_done = good[:, done:], good.shape[1] - done
            raise
        for end in ends:
            yield states[:, done:end]
            done = end

    def _deliver(self, answers: Iterator[Any]) -> None:
        taken, period_s = self._taken, self._reservoir.spec.step_period_s or 0
        try:
            for states in answers:
                header = taken.pop(0)
                since_first = header.step - self._first.step
                # A copy: the device may use its memory again before it is sent.
                if not self._answer(header, np.array(states), self._began_ns + round(1e9 * since_first * period_s)):
                    self._refuse_gap(header)
                self._seat.step += header.steps
                if taken:
                    # The device is at work with what it took beforehand.
                    self._lease.resume(taken[0])
        except Exception as error:
            # The device went on without what it was refused.
            self._seat.lost = self._seat.lost or sendable(text_of(error))
            for number, header in enumerate(taken):
                behind = Refusal(Code.STATE_LOST, f"the run has failed before this chunk: {text_of(error)}")
                self._data.fail(header, behind if number else error)

    def _refuse_gap(self, header: Header) -> None:
        if self._collects:
            raise Refusal(Code.CANCELLED, "the client has left in the middle of a run")
        self._reservoir.counters.overruns += 1
        raise Discontinuity(f"discontinuity at step {header.step}: nobody took its states in time", step=header.step)
