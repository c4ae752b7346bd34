"""Whatever clients do and a network does to their messages: right states or an error, and never invented ones."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from served import ipc_address, served
from toys import TOY

from reservoir_hw.core.errors import DeviceError, DeviceFault, ReservoirError, ShapeError, StateLost
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import open_reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.serving import Server
from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import Broken

from .bad_network import FIELDS, HARMFUL, HARMLESS, BadNetwork, SocketName, Strike

HASTY_S, PATIENT_S = 0.1, 5.0
"""Timeouts of clients: those that may lose messages, and those that must get everything."""
LEASE_S, CREDITS = 10.0, 3
PRIME = (1 << 31) - 1
FAILS = -1.0
"""An input at which the device fails."""
AFTER, KINDS = st.sampled_from([0, 0, 1, 2]), st.integers(0, len(HARMFUL) + len(FIELDS) - 1)
DIRECTIONS, LENGTHS = st.sampled_from(["to_device", "to_client"]), st.lists(st.integers(1, 4), min_size=1, max_size=6)
CHUNKS, CREDITS_USED = st.sampled_from([None, 1, 3]), st.sampled_from([None, 1, 2])
STEPS = st.sampled_from([1, 2, 4])
"""Few lengths: an answer that is taken for another one must have the same."""


def driven(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """States (batch, time, 2): x <- 31 x + u modulo a prime. No input is ever forgotten, and all numbers are exact."""
    states = np.empty(u.shape)
    for t in range(u.shape[1]):
        x = states[:, t] = (31 * x + u[:, t]) % PRIME
    return states


class Ledger(Reservoir):
    """A device that `driven` describes, with everything that can be asked over the wire."""

    def __init__(self) -> None:
        declared = {"snapshot": True, "settable": True, "deterministic": True, "max_batch": None}
        super().__init__(ReservoirSpec(inputs=2, nodes=2, dtype="float64", identity=TOY, **declared))

    def _reset(self, batch: int) -> None:
        self.x = np.zeros((batch, 2))

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        failing = (u == FAILS).any((0, 2))
        good = int(failing.argmax()) if failing.any() else u.shape[1]
        states = driven(self.x, u[:, :good])
        if good < u.shape[1]:
            raise DeviceFault("the ledger is torn", steps_done=good, states=states)
        self.x = states[:, -1]
        return states

    def _transition(self, u: np.ndarray, states: np.ndarray) -> np.ndarray:
        return driven(states, u[:, None])[:, 0]

    def _snapshot(self) -> dict[str, np.ndarray]:
        return {"x": self.x.copy()}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.x = state["x"].copy()


class Bench:
    """The server with the bad network in front of it; it can be started again."""

    def __init__(self, scheme: str, held: contextlib.ExitStack, *, checksums: bool) -> None:
        self.front, self.back = (held.enter_context(ipc_address(scheme)) for _ in range(2))
        self.checksums = checksums
        spared = scheme == "unix" and not checksums
        self.network = held.enter_context(BadNetwork(self.front, self.back, spares_payloads=spared))
        self._held = held.enter_context(contextlib.ExitStack())
        self.start()
        # The checker's client has a codec of its own.
        self.strangers = held.enter_context(Device(self.back))

    def start(self) -> None:
        self._held.close()
        self.device = Ledger()
        self.server: Server = self._held.enter_context(served(self.device, self.back, lease_s=LEASE_S, credits=CREDITS))

    @property
    def session(self) -> int:
        """Of whoever has the device, or 0."""
        return self.server._lease.number

    @property
    def attached(self) -> bool:
        """Whether that one's data connection is known: before, it is that of anybody who knows the session."""
        return self.server._seat.attached == self.session

    def until_free(self, within_s: float = PATIENT_S) -> None:
        """Wait until nobody has the device, and it is closed."""
        # A server that waits for requests looks only now and then who has left.
        with self.strangers.client() as other:
            other.untrusted([bytes(80), b""])
        until = time.monotonic() + within_s
        while self.server.status()["holder"] is not None or self.device.is_open:
            assert time.monotonic() < until, self.server.status()
            time.sleep(0.002)

    def open(self, address: str, timeout_s: float, **options: Any) -> Reservoir:
        return open_reservoir(
            {"kind": "zmq", "address": address, "timeout_s": timeout_s, "checksums": self.checksums, **options}
        )


def with_a_client(act: Callable[..., None]) -> Callable[..., None]:
    """The client is open. Which rules there are must not hang on what came of others: that is a matter of time."""

    @functools.wraps(act)
    def acting(self: Wire, *which: Any, **drawn: Any) -> None:
        if self.device is None:
            self.open()
        if self.device is not None:
            act(self, *which, **drawn)

    return acting


def with_a_state(act: Callable[..., None]) -> Callable[..., None]:
    """The client is open, and may go on."""

    @functools.wraps(act)
    def acting(self: Wire, *which: Any, **drawn: Any) -> None:
        if self.x is None:
            self.reset(batch=1)
        if self.x is None:
            self.close()
            self.open()
        if self.x is not None:
            act(self, *which, **drawn)

    return with_a_client(acting)


class Wire(RuleBasedStateMachine):
    """A client behind the bad network, and what it must have got so far.

    It meets only what can do no harm, and everything must succeed.
    """

    patient = True

    bench: ClassVar[Bench]
    outcomes: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.device: Reservoir | None = None
        self.x: np.ndarray | None = np.zeros((1, 2))
        """The state of the device, or None where the client must not go on without a reset."""
        self.rows = 1
        """Sequences of the last reset, whatever came of it."""
        self.void = False
        """Whether the session has ended without the client."""
        self.saved: list[tuple[dict[str, np.ndarray], np.ndarray]] = []
        self.used = 0
        self.may_come_late = False
        """Whether a copy of a question of this session may be held back."""

    # ---- helpers --------------------------------------------------------------------------------

    @property
    def client(self) -> Reservoir:
        assert self.device is not None
        return self.device

    def inputs(self, batch: int, steps: int) -> np.ndarray:
        """Numbers that were never used before."""
        count = 2 * batch * steps
        self.used += count
        return np.arange(self.used - count, self.used, dtype=float).reshape(batch, steps, 2)

    def came_to(self, act: Callable[[], Any], expected: np.ndarray | None = None) -> Any:
        """What an operation returns, or None after an error that may come."""
        try:
            result = act()
        except ReservoirError as raised:
            error = raised
        else:
            assert not self.void, "the session had ended"
            self.outcomes["right"] += 1
            return result
        assert not self.patient, f"{type(error).__name__} without a reason: {error}"
        forged = any(strike.kind in FIELDS for strike in self.bench.network.struck)
        assert forged or isinstance(error, DeviceError | StateLost), repr(error)
        self.outcomes[type(error).__name__] += 1
        if isinstance(error, DeviceError) and expected is not None:
            self.harvested(error, expected)
        if self.client.is_open and self.client.state_lost is not None:
            self.x = None
        return None

    def harvested(self, error: DeviceError, expected: np.ndarray) -> None:
        """What came with an error of a run is right, and nothing goes on from there."""
        assert self.client.state_lost is not None
        if error.states is not None:
            assert np.array_equal(error.states, expected[:, : error.steps_done]), "invented states in an error"

    def drive(self, u: np.ndarray, act: Callable[[np.ndarray], Any]) -> None:
        """An operation that drives the device with `u`."""
        if self.x is None:
            with pytest.raises((StateLost, DeviceError) if self.patient else ReservoirError):
                act(u)
            return
        expected = driven(self.x, u)
        states = self.came_to(lambda: act(u), expected)
        if states is not None:
            assert np.array_equal(states, expected), f"{states} instead of {expected}"
            self.x = expected[:, -1]

    # ---- the client -----------------------------------------------------------------------------

    @initialize(chunk_steps=CHUNKS, credits=CREDITS_USED)
    def first(self, chunk_steps: int | None, credits: int | None) -> None:
        self.options = {"chunk_steps": chunk_steps, "credits": credits}
        self.open()

    def open(self) -> None:
        """Open the client, if it can be opened, after a session that may have been left behind."""
        with self.bench.strangers.client() as other:
            other.ask("goodbye", session=self.bench.session or 1)
        try:
            self.device = self.bench.open(self.bench.front, PATIENT_S if self.patient else HASTY_S, **self.options)
        except ReservoirError:
            if self.patient:
                raise
            return
        self.x, self.rows, self.void = np.zeros((1, 2)), 1, False

    @rule(heals=st.booleans(), chunk_steps=CHUNKS, credits=CREDITS_USED)
    @with_a_client
    def begin_again(self, heals: bool, chunk_steps: int | None, credits: int | None) -> None:
        self.close(heals=heals)
        self.options = {"chunk_steps": chunk_steps, "credits": credits}
        self.open()

    def close(self, *, heals: bool = True) -> None:
        """Close the client; the network may be good for the next one."""
        if heals:
            self.bench.network.clear()
        device, self.device, self.x = self.client, None, None
        device.close()
        if self.patient:
            # A copy of a hello that comes behind the goodbye takes the device, for a lease.
            self.bench.until_free(PATIENT_S + LEASE_S * self.may_come_late)
            self.may_come_late = False

    @rule(batch=st.integers(1, 2))
    @with_a_client
    def reset(self, batch: int) -> None:
        def reset() -> bool:
            self.client.reset(batch)
            return True

        self.rows = batch
        self.x = np.zeros((batch, 2)) if self.came_to(reset) else None

    @rule(steps=STEPS)
    @with_a_client
    def run(self, steps: int) -> None:
        self.drive(self.inputs(self.rows, steps), self.client.run)

    @rule()
    @with_a_client
    def step(self) -> None:
        self.drive(self.inputs(self.rows, 1), lambda u: self.client.step(u[:, 0])[:, None])

    @rule(chunks=LENGTHS, taken=st.integers(0, 6))
    @with_a_state
    def stream(self, chunks: list[int], taken: int) -> None:
        """A stream that is read to its end, or left, and its answers come when others are due."""
        assert self.x is not None
        given = [self.inputs(self.rows, steps) for steps in chunks]
        expected = driven(self.x, np.concatenate(given, axis=1))
        came: list[np.ndarray] = []

        def read() -> bool:
            stream: Iterator[Any] = self.client.stream(given)
            for states in stream:
                came.append(states)
                if len(came) == taken < len(given):
                    stream.close()  # type: ignore[attr-defined]
                    return False
            return True

        ended = self.came_to(read)
        if came:
            states = np.concatenate(came, axis=1)
            assert np.array_equal(states, expected[:, : states.shape[1]]), f"{states} instead of {expected}"
        assert ended is None or len(came) == (len(given) if ended else taken)
        self.x = expected[:, -1] if ended else None
        if ended is False:
            assert self.client.state_lost is not None

    @rule()
    @with_a_state
    def snapshot(self) -> None:
        assert self.x is not None
        state = self.came_to(self.client.snapshot)
        if state is not None:
            assert np.array_equal(state["device.device.x"], self.x)
            self.saved.append((state, self.x))

    @rule(which=st.integers(0, 3))
    @with_a_client
    def restore(self, which: int) -> None:
        if not self.saved:
            self.snapshot()
            self.run(steps=2)
        if not self.saved or self.device is None:
            return
        state, x = self.saved[which % len(self.saved)]

        def restore() -> bool:
            self.client.restore(state)
            return True

        # A struck one may also have been refused: then the state is as it was.
        if self.came_to(restore):
            self.x, self.rows = x, len(x)
        self.step()

    @rule(batch=st.integers(1, 2))
    @with_a_client
    def transition(self, batch: int) -> None:
        """It leaves the state alone, whatever comes of it."""
        given = self.inputs(batch, 2)
        states = self.came_to(lambda: self.client.transition(given[:, 0], given[:, 1]))
        if states is not None:
            assert np.array_equal(states, driven(given[:, 1], given[:, :1])[:, 0])
            self.step()

    @rule(steps=st.integers(1, 8), at=st.integers(0, 7))
    @with_a_state
    def fault(self, steps: int, at: int) -> None:
        """The device fails in the middle of a run: what it had done comes with the error."""
        assert self.x is not None
        u = self.inputs(self.rows, steps)
        u[0, at % steps] = FAILS
        expected = driven(self.x, u[:, : at % steps])
        with pytest.raises(DeviceFault if self.patient else ReservoirError) as caught:
            self.client.run(u)
        error = caught.value
        if self.patient:
            assert isinstance(error, DeviceFault)
            assert "the ledger is torn" in str(error)
            assert error.steps_done == at % steps
        if isinstance(error, DeviceError):
            self.harvested(error, expected)
        self.x = None

    @rule()
    @with_a_state
    def wrong_shape(self) -> None:
        """Nothing is sent, and nothing is lost."""
        with pytest.raises(ShapeError):
            self.client.run(np.zeros((self.rows + 1, 2, 2)))
        self.step()

    # ---- the network ----------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(HARMLESS),
        socket=st.sampled_from(["data", "control"]),
        direction=DIRECTIONS,
        after=st.integers(0, 2),
        number=st.integers(1, 3),
        begin_again=st.booleans(),
        steps=STEPS,
    )
    @with_a_state
    def copies(
        self, kind: str, socket: SocketName, direction: Any, after: int, number: int, begin_again: bool, steps: int
    ) -> None:
        """A copy that comes at once, or when other messages have passed, perhaps after a reset."""
        self.bench.network.strike(Strike(kind, socket, direction, after, number))
        self.may_come_late |= kind == "again" and socket == "control"
        self.run(steps=steps)
        if begin_again:
            self.reset(batch=self.rows)
        self.run(steps=steps)

    # ---- others ---------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(
            ["hello", "reset", "run", "attach", "goodbye", "cancel", "no header", "no question", "another version"]
        )
    )
    def stranger(self, what: str) -> None:
        """Somebody else at the sockets gets an error, and the one who has the device does not notice."""
        mine, attached = self.bench.session, self.bench.attached
        if not mine:
            return
        try:
            self.turned_away(what, mine)
        except Broken:
            # The session of a hasty client may end at any moment, or its ATTACH may have been lost.
            if self.patient or (attached and self.bench.session == mine):
                raise
        if self.device is not None:
            self.step()

    def turned_away(self, what: str, mine: int) -> None:
        """A stranger's message gets the right error, as long as this session has the device."""
        with self.bench.strangers.client("stranger") as other:
            match what:
                case "hello":
                    assert "is in use by" in other.turned_down("hello", codec.E_BUSY, **hello_of(other))
                case "another version":
                    other.turned_down("hello", codec.E_VERSION, **{**hello_of(other), "versions": [2, 3]})
                case "goodbye":
                    other.turned_down("goodbye", codec.E_NO_SESSION, session=mine ^ 1)
                case "cancel":
                    other.turned_down("cancel", codec.E_NO_SESSION, session=mine ^ 1, request=1 << 40)
                case "no header":
                    other.untrusted([bytes(80), b"states"])
                case "no question":
                    self.bench.strangers.send(other.control, [b"RHWC" + bytes(20)])
                    if other.told("status")["status"]["holder"] is None:
                        raise Broken("nobody has the device any more")
                case _:
                    other.session, other.sent = mine, 1000
                    operation = {"reset": codec.RESET, "run": codec.RUN, "attach": codec.ATTACH}[what]
                    # The number of an ATTACH that has come already: it is the connection that tells.
                    if what == "attach":
                        other.sent = 0
                    other.refused(operation, codec.E_NO_SESSION, batch=int(what == "reset"))

    def teardown(self) -> None:
        """Whatever has happened: the device is free for the next one, who gets the right states."""
        bench = self.bench
        bench.network.clear()
        if self.device is not None:
            self.close()
        self.saved.clear()
        self.patient = True
        self.open()
        assert self.device is not None
        self.reset(batch=2)
        self.run(steps=4)
        self.close()


class StruckWire(Wire):
    """A hasty client that meets everything: each of its operations comes to the right end or to an error."""

    patient = False

    def __init__(self) -> None:
        super().__init__()
        self.strikes = 0

    @rule(which=KINDS, after=AFTER, number=st.integers(0, 1000), times=st.integers(1, 4), steps=STEPS)
    def requests_are_struck(self, times: int, steps: int, **how: int) -> None:
        for _ in range(times):
            self.strike("data", "to_device", **how)
            self.run(steps=steps)

    @rule(which=KINDS, after=AFTER, number=st.integers(0, 1000), times=st.integers(1, 4), steps=STEPS)
    def answers_are_struck(self, times: int, steps: int, **how: int) -> None:
        for _ in range(times):
            self.strike("data", "to_client", **how)
            self.run(steps=steps)

    @rule(which=KINDS, after=AFTER, number=st.integers(0, 1000), direction=DIRECTIONS, chunks=LENGTHS)
    def a_stream_is_struck(self, direction: Any, chunks: list[int], **how: int) -> None:
        self.strike("data", direction, **how)
        self.stream(chunks=chunks, taken=len(chunks))

    @rule(which=KINDS, number=st.integers(0, 1000), direction=DIRECTIONS)
    def questions_are_struck(self, direction: Any, **how: int) -> None:
        self.strike("control", direction, after=0, **how)

    @with_a_state
    def strike(self, socket: SocketName, direction: Any, *, which: int, after: int, number: int) -> None:
        """Each strike of a sequence is another one, where the same is drawn again, too."""
        self.strikes += 1
        kinds = (*HARMFUL, *FIELDS) if socket == "data" else HARMFUL
        kind = kinds[(which + self.strikes) % len(kinds)]
        self.bench.network.strike(Strike(kind, socket, direction, after, number + 37 * self.strikes))

    @rule(trouble=st.sampled_from(["no data", "no questions", "lease", "next client", "new server"]), steps=STEPS)
    @with_a_client
    def lost(self, trouble: str, steps: int) -> None:
        """Nothing passes any more, the lease runs out, or the server is started again."""
        match trouble:
            case "no data":
                self.bench.network.block("data")
            case "no questions":
                self.bench.network.block("control")
            case "new server":
                self.bench.start()
                self.void = True
            case _:
                self.lease_runs_out(next_one=trouble == "next client", steps=steps)
        self.step()

    def lease_runs_out(self, next_one: bool, steps: int) -> None:
        """Nothing is heard of the client, and somebody else may have the device when it comes back."""
        bench = self.bench
        bench.network.block("control")
        lease = bench.server._lease
        lease.lease_s = 0.001
        bench.until_free()
        lease.lease_s = LEASE_S
        self.void = True
        if not next_one:
            return
        with bench.open(bench.back, PATIENT_S) as other:
            u = self.inputs(1, 2 * steps)
            first = other.run(u[:, :steps])
            self.run(steps=steps)
            self.reset(batch=1)
            expected = driven(np.zeros((1, 2)), u)
            assert np.array_equal(np.concatenate([first, other.run(u[:, steps:])], axis=1), expected)


def hello_of(client: Client) -> dict[str, Any]:
    return {"versions": [1], "client": client.name, "nonce": client.nonce}


WAYS = ["ipc", "unix", "unix with checksums", "shared memory"]
MANY = pytest.mark.slow


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("machine", "examples"),
    [(Wire, 20), (StruckWire, 40), pytest.param(Wire, 50, marks=MANY), pytest.param(StruckWire, 80, marks=MANY)],
)
def test_right_states_or_an_error(
    way: str, machine: type[Wire], examples: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "reservoir_hw")
    if way == "shared memory":
        monkeypatch.setattr("reservoir_hw.drivers.zeromq.unix_sockets.INLINE_BYTES", 0)
    if way != "ipc" and examples < 50:
        examples //= 3
    outcomes: Counter[str] = Counter()
    with contextlib.ExitStack() as held:
        bench = Bench("ipc" if way == "ipc" else "unix", held, checksums="checksums" in way)
        run_state_machine_as_test(
            type(machine.__name__, (machine,), {"bench": bench, "outcomes": outcomes}),
            settings=settings(
                max_examples=examples,
                stateful_step_count=20,
                deadline=None,
                derandomize=examples < 50 or settings().derandomize,
                print_blob=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            ),
        )
    print(outcomes)
    # Both must have been frequent, or nothing was shown.
    assert outcomes["right"] > 5 * examples
    assert machine is Wire or outcomes.total() - outcomes["right"] > examples
