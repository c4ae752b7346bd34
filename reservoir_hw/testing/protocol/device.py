"""The device that is being looked at: where it listens, and clients for it."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from reservoir_hw.core.errors import DeviceBusy, DeviceDisconnected
from reservoir_hw.core.locks import user_name
from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import ANSWER_S, Client, repeat
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.line import Line

STEPS = 12
"""Of a run that is compared with another one."""
LARGEST_BATCH = 64
LARGEST_CHUNK = 4 << 20
"""Bytes of states in one message of a long run."""
SHORTEST_S = 0.1
"""Of a run in whose middle something happens."""
CHUNK_S = 0.1
MEASURED_S = 0.05
RANGE = 0.8
"""Part of the input range that is used."""


class Device(Line):
    """What the rules look at. One thread; any number of clients.

    Raises `ConfigurationError` if the address is none.
    """

    def __init__(self, address: str, control: str | None = None) -> None:
        super().__init__(address, control)
        self._welcome: dict[str, Any] = {}
        self._welcome_frames: list[bytes] = []
        self._declaration: dict[str, Any] = {}
        self._trouble = Broken("nobody has asked the device yet")

    def connect(self) -> None:
        """Look whether somebody listens there who answers as this protocol does.

        Raises `DeviceTimeout`, `DeviceDisconnected`, or `DeviceBusy` if another client has the device.
        """
        self.shake_hands()
        with self.client() as client:
            try:
                answer = self._hello(client)
                if answer.get("code") == codec.E_BUSY:
                    raise DeviceBusy(f"the check needs the device for itself: {answer['text']}")
                if answer["op"] == "error":
                    raise Broken(f"hello was answered with error {answer['code']}: {answer['text']}")
                self._welcome, self._welcome_frames = client.welcome, self.last
                self._declaration = client.attach()
            except Broken as broken:
                broken.frames = broken.frames or self.last
                self._trouble = broken
            client.leave()

    def _hello(self, client: Client) -> dict[str, Any]:
        """The first answer of all, or `DeviceDisconnected`."""
        try:
            return client.hello()
        except Broken as broken:
            seen = "control frame" in self.ledger.seen
            if seen and "control frame" not in self.ledger.broken:
                raise
            came = [frame[:16].hex() for frame in broken.frames if frame and seen]
            what = f"{broken} ({' '.join(came)})" if came else str(broken)
            raise DeviceDisconnected(f"{self.control_address}: {what}: it is no device of this protocol") from broken

    def is_alive(self) -> bool:
        """Whether it still answers questions."""
        try:
            with self.client() as client:
                self.send(client.control, [codec.pack_control({"op": "status", "id": 1})])
                return self.receive(client.control, ANSWER_S) is not None
        except Broken:
            return False

    @property
    def welcome(self) -> dict[str, Any]:
        """What the first client was told; `Broken` if it was not let in."""
        if not self._welcome:
            raise self._trouble
        return self._welcome

    @property
    def declaration(self) -> dict[str, Any]:
        """What the device said about itself to the first client; `Broken` if it could not attach."""
        if not self._declaration:
            raise self._trouble
        return self._declaration

    # ---- clients --------------------------------------------------------------------------------

    def client(self, name: str = "check") -> Client:
        """A client that has not said anything yet. All of them are one user."""
        return Client(self, f"{user_name()} on {platform.node()} ({name})")

    @property
    def lease_s(self) -> float:
        """As the welcome says."""
        lease_s = self.welcome.get("lease_s")
        if not isinstance(lease_s, int | float) or not lease_s > 0:
            raise Broken(f"the welcome gives no lease: {lease_s!r}", self._welcome_frames)
        return lease_s

    def welcomed(self, client: Client, seconds: float | None = None) -> None:
        """Have the device, as soon as it is free."""
        seconds = 1.5 * self.lease_s + 2 if seconds is None else seconds
        answer: dict[str, Any] = {}

        def let_in() -> bool:
            nonlocal answer
            answer = client.hello()
            return answer["op"] == "welcome"

        if not repeat(seconds, 0.05, let_in):
            raise Broken(f"hello got error {answer['code']} ({answer['text']}) for {seconds:.3g} s")

    @contextlib.contextmanager
    def session(self, name: str = "check") -> Iterator[Client]:
        """A client that has the device, at rest. It leaves at the end, whatever happens."""
        with self.let_in(name) as client:
            client.attach()
            yield client

    @contextlib.contextmanager
    def let_in(self, name: str = "check", **terms: Any) -> Iterator[Client]:
        """A client that has asked for the device with these terms, and was let in. It leaves at the end."""
        with self.client(name) as client:
            client.terms = terms
            self.welcomed(client)
            try:
                yield client
            finally:
                last = self.last
                client.leave()
                self.last = last

    # ---- what it is driven with -------------------------------------------------------------------

    @property
    def spec(self) -> dict[str, Any]:
        """The declared spec."""
        return codec.fitting(self.declaration["spec"])

    @property
    def is_held(self) -> bool:
        """Whether the state waits for the next RUN."""
        return self.spec.get("continuity", "held") == "held"

    @property
    def is_chunked(self) -> bool:
        """Whether a run may come in several messages."""
        return self.declaration.get("chunked") is True

    @property
    def collects(self) -> int:
        """Bytes of inputs of a whole run that may come in several messages, 0 for none."""
        found = self.declaration.get("whole_run_bytes", 0)
        return 0 if self.is_chunked or type(found) is not int else found

    def offers(self, name: str) -> bool:
        """Whether the device declares that it has this: a key of the spec that is true or false, or `readout`."""
        return bool((self.declaration if name == "readout" else self.spec).get(name))

    def must_have(self, *names: str) -> None:
        """Raise `NotOffered` unless the device declares all of these.

        They are what `offers` takes, and how it runs: held, chunked, whole_run_bytes, deterministic.
        """
        of_runs = {
            "held": (self.is_held, f"the device declares continuity: {self.spec.get('continuity')}"),
            "chunked": (self.is_chunked, "the device declares chunked: false"),
            "whole_run_bytes": (self.collects, "the device declares no whole_run_bytes"),
            "deterministic": (
                self.offers("deterministic"),
                "the device does not declare deterministic: no two runs can be compared",
            ),
        }
        for name in names:
            there, otherwise = of_runs.get(name) or (self.offers(name), f"the device declares {name}: false")
            if not there:
                raise NotOffered(otherwise)

    def batch(self, wanted: int) -> int:
        """So many sequences, or as many as the device drives at once."""
        return min(wanted, self.spec.get("max_batch") or wanted)

    def longest(self, batch: int = 1, at_most: int = LARGEST_CHUNK) -> int:
        """Steps of a RUN whose inputs and states go into a frame."""
        widest = 8 * batch * max(self.spec["inputs"], self.spec["nodes"])
        return max(1, min(self.welcome["max_frame_bytes"], at_most) // widest)

    def u(self, batch: int = 1, steps: int = STEPS, *, seed: int = 1) -> np.ndarray:
        """Numbers (batch, steps, inputs) for RUN, as they travel, within the declared range."""
        low, high = self.input_range
        middle, half = (low + high) / 2, RANGE * (high - low) / 2
        steps = min(steps, self.longest(batch))
        random = np.random.default_rng(seed)
        return self.numbers(middle + half * random.uniform(-1, 1, (batch, steps, self.spec["inputs"])))

    @property
    def input_range(self) -> tuple[float, float]:
        """What inputs may be, and can be with the declared numbers."""
        low, high = self.spec.get("input_range") or (-1.0, 1.0)
        lowest, highest = self._travelling
        return max(low, lowest), min(high, highest)

    def outside_range(self) -> list[float]:
        """Values on both sides of the declared range that can travel."""
        if self.spec.get("input_range") is None:
            return []
        low, high = self.spec["input_range"]
        far = (high - low) / 8
        lowest, highest = self._travelling
        return [value for value in (low - far, high + far) if lowest <= value <= highest]

    @property
    def _travelling(self) -> tuple[float, float]:
        """The lowest and the highest input that the declared numbers can be."""
        dtype, scale = self.declaration["inputs"]
        number = np.dtype(codec.NUMBERS[dtype])
        if number.kind == "f":
            return -math.inf, math.inf
        return np.iinfo(number).min * scale, np.iinfo(number).max * scale

    def ends_of_range(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest number within the declared range, as they travel."""
        _dtype, scale = self.declaration["inputs"]
        ends = []
        for end, inwards in zip(self.input_range, (1, -1), strict=True):
            number = self.numbers(np.array(end))
            if inwards * (float(number) * scale - end) < 0:
                is_float = number.dtype.kind == "f"
                number = np.nextafter(number, number.dtype.type(inwards * np.inf)) if is_float else number + inwards
            ends.append(np.asarray(number))
        return ends[0], ends[1]

    def numbers(self, values: np.ndarray, encoding: str = "inputs") -> np.ndarray:
        """Values as numbers that travel."""
        dtype, scale = self.declaration[encoding]
        number = np.dtype(codec.NUMBERS[dtype])
        return (np.rint(values / scale) if number.kind == "i" else values).astype(number)

    def values(self, numbers: np.ndarray, encoding: str = "states") -> np.ndarray:
        """What numbers that travel stand for."""
        return numbers * self.declaration[encoding][1]

    @property
    def chunk_steps(self) -> int:
        """Steps of a short chunk. A clock that goes on needs longer ones: the next must be there in time."""
        period_s = self.spec.get("step_period_s")
        return 1 if self.is_held or not period_s else math.ceil(CHUNK_S / period_s)

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step, as measured from here."""
        steps = STEPS
        with self.session() as client:
            while True:
                u = self.u(steps=steps)
                took = min(self._seconds_of(client, u) for _ in range(2))
                # A short run takes longer to travel than to be done.
                if took > MEASURED_S or u.shape[1] < steps:
                    return took / u.shape[1]
                steps *= 4

    def _seconds_of(self, client: Client, u: np.ndarray) -> float:
        client.reset()
        started = time.monotonic()
        client.run(u)
        return time.monotonic() - started

    def long_run(self, seconds: float, *, at_most: int = LARGEST_CHUNK) -> np.ndarray:
        """Inputs for a RUN of about so many seconds, or shorter if it would not go into a message."""
        steps = max(1, round(seconds / max(self.step_s, 1e-9)))
        return self.u(steps=min(steps, self.longest(at_most=at_most)))

    def must_take(self, u: np.ndarray) -> float:
        """Seconds that a RUN of these inputs takes; `NotOffered` if that is too short to do something meanwhile."""
        seconds = u.shape[1] * self.step_s
        if seconds < SHORTEST_S:
            raise NotOffered(f"the device needs {1000 * seconds:.0f} ms for a run as long as can be sent")
        return seconds

    def must_keep_state(self, client: Client, meanwhile: Callable[[int], object], what: str) -> None:
        """Raise `Broken` unless a RUN with something in its middle is the RUN as a whole.

        A device that is not held is left alone between RESET and RUN instead. `meanwhile` gets the step that is due.
        """
        u = self.u()
        half = u.shape[1] // 2 if self.is_held else 0
        client.reset()
        states = [client.run(u[:, :half])] if half else []
        meanwhile(half)
        states.append(client.run(u[:, half:], step=half))
        if self.offers("deterministic"):
            whole = client.from_rest(u)
            self.must_agree(whole, np.concatenate(states, axis=1), f"a run, and the same with {what} in its middle")

    def must_agree(
        self, first: np.ndarray, second: np.ndarray, what: str, *, exact: bool = False, counts: float = 1.0
    ) -> None:
        """Raise `Broken` unless these are equal, as far as the device is deterministic.

        `exact`: bit by bit; else but for rounding, `counts` of integers and 1e-4 of the largest of other numbers.
        """
        if not self.offers("deterministic"):
            return
        if first.shape != second.shape:
            raise Broken(f"{what}: {first.shape} and {second.shape} numbers")
        if exact:
            room, distance = 0.0, first.view(f"u{first.itemsize}") != second.view(f"u{second.itemsize}")
        else:
            room = counts if first.dtype.kind == "i" else 1e-4 * max(float(np.abs(first).max(initial=0)), 1e-30)
            distance = np.abs(first.astype(float) - second)
        if not (distance <= room).all():
            where = tuple(map(int, np.unravel_index(int(np.argmax(np.nan_to_num(distance, nan=np.inf))), first.shape)))
            raise Broken(f"{what}: {first[where]} and {second[where]} at (sequence, step, node) {where}")

    def pipeline(self, client: Client, runs: list[np.ndarray]) -> list[codec.Header]:
        """Send RUN requests that need no answer in between: chunks of one run, or a run from rest each."""
        sent, step = [], 0
        for number, u in enumerate(runs):
            if self.is_chunked:
                sent.append(client.send_run(u, step=step, flags=codec.MORE if number + 1 < len(runs) else 0))
                step += u.shape[1]
            else:
                sent.append(client.send_run(u))
                if number + 1 < len(runs):
                    sent.append(client.send(client.head(codec.RESET, batch=1)))
        return sent


def lost(client: Client, device: Device) -> None:
    """The state must be lost now, until RESET."""
    client.failed(client.send_run(device.u()), codec.E_STATE_LOST)
    client.from_rest(device.u())
