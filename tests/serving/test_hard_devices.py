"""Whatever a device or a client does to it, a server stays, says so, and brings the device to its safe state."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from served import connect, free_address, ipc_address, served, socket_of, until
from toys import Toy

from reservoir_hw.core.errors import (
    CalibrationError,
    ConfigurationError,
    DeviceDisconnected,
    DeviceFault,
    DeviceTimeout,
    Discontinuity,
    StateLost,
)
from reservoir_hw.core.interrupts import StopOnSignals
from reservoir_hw.drivers.zeromq import Connection, encoding_of
from reservoir_hw.drivers.zeromq.addresses import checked_address, control_address
from reservoir_hw.drivers.zeromq.frames import Operation
from reservoir_hw.drivers.zeromq.sockets import MOST_FRAMES, receive, send_at_once
from reservoir_hw.serving import Server
from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.device import Device


class Raising(Toy):
    """Raises what it is given where the first input is more than 1."""

    def __init__(self, make: Callable[[], Exception], **declared: Any) -> None:
        super().__init__(**declared)
        self.make = make

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if u[0, 0, 0] > 1:
            raise self.make()
        return super()._run(u, out)


# ---- what a device may put into its counters and errors ---------------------------------------------


def test_counters_of_numpy_reach_the_status(address: str) -> None:
    class Counting(Toy):
        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            self.counters.saturations += (u > 0.5).sum()
            return super()._run(u, out)

    with served(Counting(), address), connect(address) as far:
        far.run(np.ones((1, 3, 2)))
        for _ in range(2):
            assert far.status()["counters"]["saturations"] == 6
            assert type(far.status()["counters"]["saturations"]) is int


def test_no_counter_ends_the_control_thread(address: str) -> None:
    class Odd(Toy):
        odd: Any = 1 << 200

        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            self.counters.saturations = self.odd
            return super()._run(u, out)

    device = Odd()
    with served(device, address), connect(address) as far:
        for device.odd, shown in (
            ("many", "no number: many"),
            (None, "no number: None"),
            (float("nan"), "no number: nan"),
        ):
            far.run(np.ones((1, 3, 2)))
            assert far.status()["counters"]["saturations"] == shown
        device.odd = 1 << 200
        far.run(np.ones((1, 3, 2)))
        with pytest.raises(DeviceFault, match="a bug in the server: see its log"):
            far.status()
        assert far._connection.ask("ping", session=far._connection._session)["valid"]
        device.counters.saturations = 3
        assert far.status()["counters"]["saturations"] == 3


class Mute(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


def changed(**attributes: Any) -> DeviceFault:
    fault = DeviceFault("changed later", states=np.zeros((1, 2, 2)))
    for name, value in attributes.items():
        setattr(fault, name, value)
    return fault


@pytest.mark.parametrize(
    ("make", "kind", "said", "facts"),
    [
        (lambda: DeviceFault("shutter", steps_done=np.int64(1), states=np.zeros((1, 1, 2))), DeviceFault, "shutter",  # type: ignore[arg-type]
         {"steps_done": 1}),
        (lambda: changed(steps_done=np.int64(2)), DeviceFault, "changed later", {"steps_done": 2}),
        (lambda: changed(steps_done="two"), DeviceFault, None, {"steps_done": 0}),
        (lambda: changed(steps_done=1 << 80), DeviceFault, "changed later", {"steps_done": 2}),
        (lambda: changed(__notes__=[None, Mute()]), DeviceFault, "changed later", {"steps_done": 0}),
        (lambda: changed(__notes__=5), DeviceFault, "changed later", {"steps_done": 0}),
        (Mute, DeviceFault, None, {"steps_done": 0}),
        (lambda: DeviceFault("the bench said " + b"\xff\xfe".decode("ascii", "surrogateescape"), steps_done=1),
         DeviceFault, "the bench said ", {}),
        *((lambda text=text, states=states: DeviceFault(text, steps_done=1, states=states), DeviceFault, text, {})
          for text, states in (("words", np.array([[["a", "b"]]])), ("a list", [1.0, 2.0]), ("flat", np.zeros(3)))),
        *((lambda step=step: Discontinuity("late", step=step), Discontinuity, "late", {"step": 7})  # type: ignore[arg-type]
          for step in (np.int64(7), np.uint16(7))),
        *((lambda kind=kind: kind("the pump is off"), kind, "the pump is off", {})
          for kind in (DeviceFault, DeviceTimeout, DeviceDisconnected, StateLost, CalibrationError)),
        # A task that was cancelled is a fault.
        (asyncio.CancelledError, DeviceFault, None, {}),
    ],
)  # fmt: skip
def test_what_a_device_raises_is_told_and_does_not_end_the_server(
    address: str, make: Callable[[], Exception], kind: type[Exception], said: str | None, facts: dict[str, int]
) -> None:
    with served(Raising(make), address), connect(address) as far:
        far.run(np.full((1, 3, 2), 0.5))
        with pytest.raises(kind, match=said) as caught:
            far.run(np.full((1, 3, 2), 2.0))
        assert {name: getattr(caught.value, name) for name in facts} == facts
        far.reset()
        assert far.run(np.full((1, 3, 2), 0.5)).shape == (1, 3, 2)


@pytest.mark.parametrize("states", [None, np.zeros((1, 341, 2))], ids=["long text", "many states"])
def test_errors_go_into_a_frame_too(address: str, states: np.ndarray | None) -> None:
    fault = DeviceFault("ä" * 100_000, steps_done=0 if states is None else 341, states=states)
    with served(Raising(lambda: fault), address, max_frame_bytes=4096):
        connection = Connection(address)
        connection.attach()
        u = np.full((1, 250, 2), 2.0)
        connection.send(Operation.RUN, u, batch=1, steps=250, width=2, dtype=encoding_of("float64").dtype)
        header, payload = connection._await(2)
        assert header.operation == 0xFF
        assert len(payload) <= 4096
        told = msgpack.unpackb(payload)
        assert told["text"].startswith("ää")
        if states is not None:
            assert told["steps_done"] == 128
            assert len(told["states"]) == 128 * 2 * 8
            assert "(states: 128 of 341 steps, more do not fit)" in told["text"]
        connection._answered = 2
        connection.close()


def test_a_server_that_is_stopped_says_so(address: str) -> None:
    class Held(Toy):
        go, inside = threading.Event(), threading.Event()

        def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
            self.inside.set()
            assert self.go.wait(20)
            return super()._run(u, out)

    with served(Held(), address) as server, Device(address) as line, line.client() as client:
        client.hello()
        client.attach()
        first, second = (client.send_run(np.zeros((1, 1, 2)), step=step) for step in range(2))
        assert Held.inside.wait(10)
        server.stop()
        Held.go.set()
        client.states(first)
        client.failed(second, codec.E_SHUTTING_DOWN)


# ---- the end ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_client_that_goes_on_asking_does_not_keep_the_device_from_its_safe_state(address: str) -> None:
    device = Toy()
    ended = threading.Event()
    with served(device, address) as server:
        connection = Connection(address)
        declaration = connection.attach()
        closed = device.closed

        data = socket_of(connection._data)

        def flood() -> None:
            while not ended.is_set():
                with contextlib.suppress(Exception):
                    connection.send(
                        Operation.RUN, np.zeros((1, 1, 2)), batch=1, steps=1, width=2, step=connection._sent - 1,
                        dtype=declaration.inputs.dtype,
                    )  # fmt: skip
                while data.poll(0):
                    receive(data)

        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            time.sleep(0.3)
            asked = server._lease.traffic.requests
            assert asked > 10
            server.stop()
            until(lambda: device.closed > closed, 5)
            assert device.closed == closed + 1
        finally:
            ended.set()
            flooding.join()
        connection._dead = "the server has ended"
        connection.close()


class Stuck(Toy):
    """Cannot be brought to its safe state as long as its interlock fails."""

    interlock_fails = False

    def _close(self) -> None:
        if self.interlock_fails:
            raise DeviceFault("the interlock does not answer")
        super()._close()


def test_a_device_that_is_not_safe_is_given_to_nobody(address: str) -> None:
    device = Stuck()
    with served(device, address) as server:
        assert server.status()["problem"] is None
        with connect(address):
            device.interlock_fails = True
        until(lambda: server.status()["problem"] is not None)
        for _ in range(2):
            with pytest.raises(DeviceFault, match=r"safe state: .*interlock does not answer.* look after the device"):
                connect(address)
        asking = Connection(address)
        assert "the interlock does not answer" in asking.status()["problem"]
        asking.close()
        until(lambda: server._lease.number == 0)
        device.interlock_fails = False
        closed = device.closed
        with connect(address) as far:
            assert device.closed == closed + 1
            assert far.status()["problem"] is None
            far.run(np.ones((1, 3, 2)))


def test_a_server_that_leaves_a_device_unsafe_says_so(address: str) -> None:
    device = Stuck()

    def use() -> None:
        with served(device, address), connect(address) as far:
            far.run(np.ones((1, 3, 2)))
            device.interlock_fails = True

    with pytest.raises(DeviceFault, match=r"safe state: .*the interlock does not answer"):
        use()


def test_an_unsafe_device_outranks_an_interrupt_and_odd_counters(address: str) -> None:
    device = Stuck()
    device.counters.saturations = np.zeros(3)  # type: ignore[assignment]

    server = Server(device, address)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            server.run(on_ready=interrupted)
        except BaseException as error:
            ended.append(error)

    def interrupted() -> None:
        device.open()
        device.interlock_fails = True
        raise KeyboardInterrupt

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    (error,) = ended
    assert isinstance(error, DeviceFault)
    assert "the interlock does not answer" in str(error)
    assert isinstance(error.__cause__, KeyboardInterrupt)


def test_a_long_reason_still_fits_into_the_status(address: str) -> None:
    class Talkative(Toy):
        fails = False

        def _close(self) -> None:
            if self.fails:
                raise RuntimeError("x" * 2_000_000)

    device = Talkative()

    def use() -> None:
        with served(device, address) as server:
            with connect(address) as far:
                far.run(np.ones((1, 3, 2)))
                device.fails = True
            until(lambda: server.problem is not None)
            with contextlib.closing(Connection(address)) as connection:
                assert 1000 < len(connection.status()["problem"]) < 100_000

    with pytest.raises(DeviceFault, match="safe state"):
        use()


def test_data_and_control_may_speak_different_protocols() -> None:
    data, control = free_address(), free_address().replace("127.0.0.1", "[::1]")
    with served(Toy(), data, control=control), connect(data, control=control) as far:
        assert far.run(np.full((1, 3, 2), 0.5)).shape == (1, 3, 2)


def test_a_closing_that_fails_after_opening_has_failed_counts_too(address: str) -> None:
    class Twice(Stuck):
        opens = True

        def _reset(self, batch: int) -> None:
            if not self.opens:
                raise DeviceFault("the stage does not home")
            super()._reset(batch)

    device = Twice()
    with served(device, address) as server:
        device.opens, device.interlock_fails = False, True
        with pytest.raises(DeviceFault, match="the stage does not home"):
            connect(address)
        assert "interlock" in server.status()["problem"]
        device.opens, device.interlock_fails = True, False
        with connect(address) as far:
            far.run(np.ones((1, 3, 2)))


# ---- signals ----------------------------------------------------------------------------------------


def test_handlers_are_put_back_and_those_of_the_owner_stay() -> None:
    def own(number: int, frame: Any) -> None:
        del number, frame

    before = signal.signal(signal.SIGTERM, own)
    default = signal.signal(signal.SIGINT, signal.default_int_handler)
    stops: list[int] = []
    try:
        with StopOnSignals(lambda: stops.append(1), lambda: False):
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert stops == [1]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, default)


def test_a_second_signal_interrupts_only_where_it_may() -> None:
    default = signal.signal(signal.SIGINT, signal.default_int_handler)
    closing = [True]

    def serve() -> None:
        with StopOnSignals(lambda: None, lambda: closing[0]):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.3)
            closing[0] = False
            os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            serve()
        assert not closing[0]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, default)


# ---- messages and addresses -------------------------------------------------------------------------


def test_of_a_message_with_too_many_frames_few_are_kept() -> None:
    context = zmq.Context()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://frames")
    other.connect("inproc://frames")
    one.send_multipart([b"x"] * 10_000)
    one.send_multipart([b"a", b"b"])
    assert len(receive(other)) == MOST_FRAMES
    assert [frame.bytes for frame in receive(other)] == [b"a", b"b"]
    context.destroy(linger=0)


@pytest.mark.parametrize("control", [False, True])
def test_a_message_of_many_frames_is_counted_and_dropped(address: str, control: bool) -> None:
    with served(Toy(), address) as server:
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.connect(control_address(address) if control else address)
        stranger.send_multipart([b"x"] * 1000)
        until(lambda: server._lease.traffic.damaged == 1)
        context.destroy(linger=0)
        with connect(address) as far:
            far.run(np.ones((1, 3, 2)))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://[zz]:5555", "is not tcp://host:port"),
        ("tcp://[::1:5555", "is not tcp://host:port"),
        ("tcp://.:5555", "is not tcp://host:port"),
        ("tcp://127.0.0.1:٥٥٥٥", "is not tcp://host:port"),
        ("tcp://127.0.0.1:65536", "is not tcp://host:port"),
        # ZeroMQ would read these otherwise.
        ("tcp://127.0.0.1:1;0.0.0.0:5599", "is not tcp://host:port"),
        ("tcp://127.0.0.1,0.0.0.0:5599", "is not tcp://host:port"),
        ("tcp://a b:5599", "is not tcp://host:port"),
        ("tcp://127.0.0.1:5 5", "is not tcp://host:port"),
        ("tcp://@x:5", "is not tcp://host:port"),
        ("tcp://127.0.0.1:65535", r"^tcp://127.0.0.1:65535: there is no port behind it .* 1 to 65534"),
        ("ipc://*", "name one"),
        ("ipc:///tmp/\udcff", "printable text"),
        ("ipc:///tmp/a\0b", "printable text"),
    ],
)
def test_addresses_at_which_nobody_can_listen(address: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Server(Toy(), address)


def test_addresses_at_which_one_can() -> None:
    for address in ("tcp://[::1]:5555", "tcp://*:1", "tcp://bench-2.lab_net:65534", "ipc://./µ device", "ipc://@name"):
        assert checked_address(address) == address
    assert control_address("tcp://[::1]:65534") == "tcp://[::1]:65535"
    Server(Toy(), "tcp://127.0.0.1:65535", control="tcp://127.0.0.1:1")


# ---- promises ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("check_states", "checked"), [(None, True), (True, True), (False, False)])
def test_a_server_promises_finite_states_only_if_somebody_looks(
    address: str, check_states: bool | None, checked: bool
) -> None:
    """A device of another host, served on: the one behind it looks at nothing."""
    # Narrower numbers on the wire than here: this server promises nothing.
    with ipc_address() as behind, served(Toy(), behind, states=encoding_of("float32")):
        with connect(behind, check_states=check_states) as middle:
            assert not middle._declaration.finite
            assert middle.states_are_checked is checked
        with served(middle, address), connect(address) as far:
            assert far._declaration.finite is checked


def test_answers_are_not_dropped_while_they_are_taken() -> None:
    """ZeroMQ says that a queue is full if it has not looked for a while: 8 of these messages would go out."""
    context = zmq.Context()
    try:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, 4)
        dealer.setsockopt(zmq.RCVHWM, 4)
        router.bind("inproc://answers")
        dealer.connect("inproc://answers")
        dealer.send(b"question")
        peer = router.recv_multipart()[0]
        for number in range(1000):
            send_at_once(router, [peer, b"%d" % number])
            assert dealer.recv() == b"%d" % number
        many = (send_at_once(router, [peer, b"nobody takes them"]) for _ in range(1000))
        with pytest.raises(zmq.Again):
            list(many)
    finally:
        context.destroy(linger=0)
