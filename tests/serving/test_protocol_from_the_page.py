"""docs/protocol.md is enough: a client and a device written from it alone speak with the project's own."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import (
    CalibrationError,
    DeviceBusy,
    DeviceDisconnected,
    DeviceError,
    DeviceFault,
    DeviceTimeout,
    InputRangeError,
    NotSupported,
    ProtocolError,
    ReservoirError,
    StateLost,
)
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir, open_reservoir, parse_reservoir
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.serving import Server
from reservoir_hw.testing.protocol import codec as wire
from reservoir_hw.testing.protocol.codec import Header

from . import page_device as leaky
from .page_client import PATIENCE_S, LostMessage, PageClient, Refused, receive_within
from .page_device import PageDevice, Refusal, Replies, is_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
NODES = 40


def esn() -> Reservoir:
    section = {"kind": "esn", "nodes": NODES, "inputs": 3, "seed": 1}
    return build_reservoir(parse_reservoir(Document.from_mapping(section, "test")))


def inputs(batch: int = 1, steps: int = 20, width: int = 3) -> np.ndarray:
    return np.random.default_rng(5).uniform(-1, 1, (batch, steps, width)).astype(np.float32)


def local(u: np.ndarray) -> np.ndarray:
    """The states of the same reservoir without any wire."""
    with esn() as reservoir:
        reservoir.reset(len(u))
        return np.asarray(reservoir.run(u))


class Bench(Reservoir):
    """x <- x/2 + u, with a gate that holds a run, and faults to order."""

    def __init__(self, fault: BaseException | None = None, fails_at: int = 0, **declared: Any) -> None:
        identity = Identity(vendor="tests", model="bench", simulated=True)
        spec = {"inputs": 2, "nodes": 2, "identity": identity, "input_range": (-1.0, 1.0), "max_batch": 2}
        super().__init__(ReservoirSpec(**{**spec, **declared}))
        self.fault, self.fails_at = fault, fails_at
        self.gate, self.entered, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.gate.set()
        self.address = ""

    def _reset(self, batch: int) -> None:
        self.x = np.zeros((batch, 2), np.float32)

    def _run(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        states = np.empty_like(u)
        for t in range(u.shape[1]):
            if self.fault is not None and t == self.fails_at:
                if isinstance(self.fault, ReservoirError) and hasattr(self.fault, "steps_done"):
                    vars(self.fault).update(steps_done=t, states=states[:, :t])
                raise self.fault
            self.x = self.x / 2 + u[:, t]
            states[:, t] = self.x
        return states

    def _upload(self, weights: Mapping[str, np.ndarray]) -> ReservoirSpec:
        identity = Identity(vendor="tests", model="bench", simulated=True, content=str(float(weights["gain"])))
        return self.spec.model_copy(update={"identity": identity})

    def _close(self) -> None:
        self.closed.set()


@contextmanager
def serving(reservoir: Reservoir, address: str, **options: Any) -> Iterator[Server]:
    server = Server(reservoir, address, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def free_address() -> str:
    """Two ports side by side that nobody listens on."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return f"tcp://127.0.0.1:{port}"


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/d"


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench()
    bench.address = f"ipc://{tmp_path_factory.mktemp('bench')}/d"
    with serving(bench, bench.address):
        yield bench


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    """A bench that is being served, as good as new."""
    shared_bench.entered.clear()
    shared_bench.closed.clear()
    yield shared_bench
    shared_bench.fault, shared_bench.fails_at = None, 0
    shared_bench.gate.set()


@contextmanager
def session(address: str, name: str = "page client") -> Iterator[PageClient]:
    with PageClient(address, name) as client:
        client.hello()
        try:
            client.attach()
            yield client
        finally:
            client.goodbye()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an esn that all tests of this module take in turn."""
    address = f"ipc://{tmp_path_factory.mktemp('esn')}/d"
    with serving(esn(), address):
        yield address


@pytest.fixture
def client(served: str) -> Iterator[PageClient]:
    """A session with the esn."""
    with session(served) as client:
        yield client


def refusal(call: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        call()
    error = caught.value.error
    assert isinstance(error["text"], str)
    assert error["text"]
    return caught.value


def code_of(call: Callable[[], object]) -> int:
    """The code of the error that `call` was answered with, 0 if it was not."""
    try:
        call()
    except Refused as refused:
        return refused.code
    return 0


def state_is_held(client: PageClient) -> bool:
    """Whether the device goes on from where the client believes it to be."""
    nothing = np.zeros((client.batch, 1, client.declaration["spec"]["inputs"]), np.float32)
    code = code_of(lambda: client.run(nothing))
    assert code in (0, wire.E_STATE_LOST)
    return code == 0


# ---- the page's own numbers -----------------------------------------------------------------------


def examples() -> list[bytes]:
    dumps: list[str] = []
    last = ""
    for line in PAGE.read_text(encoding="utf-8").partition("## Examples in hex")[2].splitlines():
        found = re.fullmatch(r" {4}([0-9a-f]{2}) ((?: [0-9a-f]{2})+)", line)
        if found is None:
            last = ""
            continue
        if not last:
            dumps.append("")
        assert int(found[1], 16) == len(dumps[-1]) // 2
        dumps[-1] += found[2].replace(" ", "")
        last = line
    return [bytes.fromhex(dump) for dump in dumps]


def test_the_check_value() -> None:
    assert wire.crc32c(b"123456789") == 0xE3069283
    assert wire.crc32c(b"") == 0


def test_the_examples_say_what_the_text_says() -> None:
    ping, reset, run, run_payload, reply, reply_payload, *_unix = examples()
    mine = 0x0102030405060708
    assert wire.unpack_control(ping) == {"op": "ping", "id": 5, "session": mine}
    assert wire.unpack_data([reset, b""])[0] == Header(wire.RESET, mine, 2, batch=1)
    header, payload = wire.unpack_data([run, run_payload])
    assert header == Header(wire.RUN, mine, 3, step=7, batch=1, steps=1, width=2, dtype=wire.F4)
    assert wire.numbers(header, payload).tolist() == [[[0.5, -1.0]]]
    header, payload = wire.unpack_data([reply, reply_payload])
    due = replace(header, operation=wire.RUN | wire.REPLY, session=mine, request=3, step=7, batch=1, steps=1, width=3)
    assert header == replace(due, dtype=wire.F4, scale=1.0, time=1700000000 * 10**9, period=1e-3, flags=0)
    assert wire.numbers(header, payload).tolist() == [[[0.25, 0.5, -0.75]]]


def test_my_own_code_writes_the_examples() -> None:
    ping, reset, run, run_payload, reply, reply_payload, *_unix = examples()
    assert wire.pack_control({"op": "ping", "id": 5, "session": 0x0102030405060708}) == ping
    for frames in ([reset, b""], [run, run_payload], [reply, reply_payload]):
        header, payload = wire.unpack_data(frames)
        assert wire.pack_data(header, payload) == frames


# ---- the page's client, the project's server ------------------------------------------------------


def test_handshake_over_tcp() -> None:
    address = free_address()
    with serving(esn(), address, lease_s=7.0, credits=3), PageClient(address) as client:
        welcome = client.hello()
        assert welcome["version"] == 1
        assert 0 < welcome["session"] < 2**64
        assert (welcome["lease_s"], welcome["credits"]) == (7.0, 3)
        assert welcome["max_frame_bytes"] > 0
        assert isinstance(welcome["server"], str)
        assert isinstance(welcome["device"], str)
        assert client.ping()["valid"]
        client.attach()
        assert np.array_equal(client.run(inputs()), local(inputs()))
        client.goodbye()


def test_the_highest_common_version_is_chosen(address: str) -> None:
    with serving(esn(), address), PageClient(address) as client:
        assert client.hello(versions=[7, 1, 200])["version"] == 1


def test_the_declaration(client: PageClient) -> None:
    declared = client.declaration
    spec = declared["spec"]
    assert (spec["inputs"], spec["nodes"], spec["dtype"]) == (3, NODES, "float32")
    assert {"vendor", "model", "simulated", "fingerprint"} <= set(spec["identity"])
    assert declared["inputs"] == declared["states"] == [wire.F4, 1.0]
    assert (declared["chunked"], declared["readout"]) == (True, True)
    assert spec["continuity"] == "held"
    with esn() as reservoir:
        assert spec["identity"]["fingerprint"] == reservoir.spec.identity.fingerprint


def test_attach_leaves_one_sequence_at_rest(client: PageClient) -> None:
    assert np.array_equal(client.run(inputs()), local(inputs()))


def test_pipelined_chunks_are_one_run(client: PageClient) -> None:
    u = inputs(batch=2, steps=60)
    client.reset(2)
    chunks = np.array_split(u, [1, 2, 5, 6, 9, 14, 20, 21, 33, 34, 40, 59], axis=1)
    assert len(chunks) > client.welcome["credits"]
    states = client.run_chunks(chunks)
    assert np.array_equal(np.concatenate(states, axis=1), local(u))
    pong = client.ping()
    assert (pong["valid"], pong["received"], pong["finished"], pong["busy"]) == (
        True,
        client.request,
        client.request,
        None,
    )


def test_single_steps_go_on_from_each_other(client: PageClient) -> None:
    u = inputs(batch=3, steps=9)
    client.reset(3)
    states = [client.run(u[:, t : t + 1]) for t in range(9)]
    assert np.array_equal(np.concatenate(states, axis=1), local(u))


def test_reset_begins_again(client: PageClient) -> None:
    u = inputs()
    first = client.run(u)
    client.reset()
    assert client.step == 0
    assert np.array_equal(client.run(u), first)


def test_a_reply_to_run_carries_a_time_that_grows(client: PageClient) -> None:
    first, _ = client.reply(client.send_run(inputs()))
    second, _ = client.reply(client.send_run(inputs()))
    assert (first.dtype, first.width, first.scale) == (wire.F4, NODES, 1.0)
    assert first.time == second.time == 0 or second.time > first.time > 0


def test_snapshot_and_restore(client: PageClient) -> None:
    u = inputs(batch=2)
    client.reset(2)
    client.run(u[:, :8])
    state = client.snapshot()
    rest = client.run(u[:, 8:])
    client.reset(1)
    client.restore(state, batch=2, step=8)
    assert np.array_equal(client.run(u[:, 8:]), rest)
    client.restore(state, batch=2, step=0)
    assert np.array_equal(client.run(u[:, 8:]), rest)


def test_the_step_after_restore_is_the_one_in_its_header(client: PageClient) -> None:
    client.run(inputs())
    client.restore(client.snapshot(), batch=1, step=20)
    assert refusal(lambda: client.reply(client.put(*client.run_header(inputs(), step=0)))).code == wire.E_SEQUENCE


def test_transition_leaves_the_state_alone(client: PageClient) -> None:
    u = inputs(batch=1, steps=20)
    states = local(u)
    first = client.run(u[:, :10])
    given = np.random.default_rng(1).uniform(-1, 1, (4, NODES)).astype(np.float32)
    drive = inputs(batch=4, steps=1)[:, 0]
    with esn() as reservoir:
        expected = reservoir.transition(drive, given)
    assert np.array_equal(client.transition(drive, given, wire.F4), expected)
    assert np.array_equal(np.concatenate([first, client.run(u[:, 10:])], axis=1), states)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.float32])
def test_outputs_of_a_readout(client: PageClient, dtype: type) -> None:
    rng = np.random.default_rng(2)
    weights = rng.uniform(-100, 100, (4, NODES)).astype(dtype)
    scale, bias = rng.uniform(0.001, 0.01, 4).astype(np.float32), rng.normal(size=4).astype(np.float32)
    u = inputs(batch=2)
    client.reset(2)
    client.readout(weights, scale, bias)
    outputs = client.run_chunks(np.array_split(u, 3, axis=1), flags=wire.OUTPUTS)
    expected = scale * (local(u) @ weights.astype(np.float32).T) + bias
    assert outputs[0].dtype == np.float32
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, rtol=1e-5, atol=1e-5)
    client.reset(2)
    assert np.array_equal(client.run(u), local(u)), "without flag 2 states come back"


def test_upload_answers_with_the_new_declaration(address: str) -> None:
    with serving(Bench(programmable=True), address), session(address) as client:
        before = client.declaration["spec"]["identity"]["fingerprint"]
        client.run(inputs(width=2))
        client.upload({"gain": np.array(3.0)})
        assert client.declaration["spec"]["identity"]["fingerprint"] != before
        client.reset()
        client.run(inputs(width=2))


def test_status_needs_no_session(address: str) -> None:
    with serving(esn(), address), PageClient(address) as stranger:
        assert isinstance(stranger.status(), dict)
        with session(address, "somebody at desk 7"):
            assert "somebody at desk 7" in str(stranger.status())
        assert "somebody at desk 7" not in str(stranger.status()["holder"])


def test_a_busy_device_says_with_what(address: str) -> None:
    bench = Bench()
    with serving(bench, address, lease_s=0.6), session(address) as client:
        bench.gate.clear()
        bench.entered.clear()
        header = client.send_run(inputs(width=2))
        assert bench.entered.wait(PATIENCE_S)
        busy = client.ping()["busy"]
        assert busy["request"] == header.request
        assert isinstance(busy["operation"], str)
        assert busy["seconds"] >= 0
        assert client.ping()["finished"] < header.request
        # Longer than the lease: the pings hold it.
        started = time.monotonic()
        while time.monotonic() - started < 1.0:
            assert receive_within(client.data, 0.2) is None
            assert client.ping()["valid"]
        bench.gate.set()
        assert client.states(header).shape == (1, 20, 2)
        # The count follows the answer.
        until = time.monotonic() + PATIENCE_S
        while client.ping()["finished"] < header.request and time.monotonic() < until:
            time.sleep(0.01)
        assert client.ping()["finished"] == header.request


def test_cancel(bench: Bench) -> None:
    with session(bench.address) as client:
        bench.gate.clear()
        bench.entered.clear()
        u = inputs(width=2, steps=3)
        headers = [client.send_run(u, flags=wire.MORE) for _ in range(4)]
        assert bench.entered.wait(PATIENCE_S)
        client.cancel(headers[2].request)
        bench.gate.set()
        assert code_of(lambda: client.states(headers[0])) in (0, wire.E_CANCELLED)
        for header in headers[1:3]:
            refused = refusal(lambda header=header: client.states(header))
            assert refused.code == wire.E_CANCELLED
            assert refused.error["state_lost"]
        assert refusal(lambda: client.states(headers[3])).code == wire.E_STATE_LOST
        client.reset()
        assert np.array_equal(client.run(u)[0, 0], u[0, 0])


def test_cancel_of_what_is_done_changes_nothing(client: PageClient) -> None:
    client.run(inputs())
    client.cancel(client.request)
    assert state_is_held(client)


def test_goodbye_frees_the_device(bench: Bench) -> None:
    with PageClient(bench.address) as client:
        client.hello()
        client.attach()
        client.goodbye()
        assert bench.closed.wait(PATIENCE_S), "the device goes to its safe state"
        assert not client.ping()["valid"]
        assert refusal(client.goodbye).code == wire.E_NO_SESSION
        assert refusal(client.reset).code == wire.E_NO_SESSION
        with session(bench.address, "the next") as other:
            assert other.run(inputs(width=2)).shape == (1, 20, 2)


def test_one_client_at_a_time(address: str) -> None:
    with serving(esn(), address), session(address, "Ada, room 3") as holder, PageClient(address, "Bob") as other:
        refused = refusal(other.hello)
        assert refused.code == wire.E_BUSY
        assert "Ada, room 3" in refused.text
        assert np.array_equal(holder.run(inputs()), local(inputs()))


def test_the_same_nonce_gets_the_same_welcome(client: PageClient) -> None:
    client.run(inputs())
    first = {**client.welcome, "id": 0}
    assert {**client.hello(), "id": 0} == first
    assert state_is_held(client)


def test_silence_ends_the_lease(address: str) -> None:
    bench = Bench()
    with (
        serving(bench, address, lease_s=0.3),
        PageClient(address, "silent") as silent,
        PageClient(address, "next") as other,
    ):
        silent.hello()
        silent.attach()
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE_S:
            code = code_of(other.hello)
            assert code in (0, wire.E_BUSY)
            if code == 0:
                break
        assert 0.25 < time.monotonic() - started < 3
        assert bench.closed.is_set()
        assert not silent.ping()["valid"]
        assert refusal(silent.reset).code == wire.E_NO_SESSION
        other.attach()
        other.goodbye()


def test_requests_alone_hold_the_lease(address: str) -> None:
    with serving(esn(), address, lease_s=0.4), session(address) as client:
        started = time.monotonic()
        while time.monotonic() - started < 0.9:
            client.run(inputs(steps=2))


def test_no_version_in_common(address: str) -> None:
    with serving(esn(), address), PageClient(address) as client:
        refused = refusal(lambda: client.hello(versions=[2, 3]))
        assert refused.code == wire.E_VERSION
        assert "1" in refused.text


def test_data_before_hello_has_no_session(address: str) -> None:
    with serving(esn(), address), PageClient(address) as client:
        refused = refusal(client.attach)
        assert refused.code == wire.E_NO_SESSION
        assert not refused.error["state_lost"]


def test_requests_before_attach_are_refused(address: str) -> None:
    with serving(esn(), address), PageClient(address) as client:
        client.hello()
        refusal(client.reset)


def test_attach_must_be_request_1(client: PageClient) -> None:
    refusal(client.attach)


def test_a_session_is_bound_to_its_connection(client: PageClient, served: str) -> None:
    with PageClient(served) as thief:
        thief.session, thief.request = client.session, client.request
        assert refusal(thief.reset).code == wire.E_NO_SESSION
    assert np.array_equal(client.run(inputs()), local(inputs()))


def test_another_session_number_is_refused(client: PageClient) -> None:
    header, payload = client.run_header(inputs())
    refused = refusal(lambda: client.reply(client.put(replace(header, session=header.session ^ 1), payload)))
    assert refused.code == wire.E_NO_SESSION
    client.request -= 1
    assert np.array_equal(client.run(inputs()), local(inputs()))


def resealed(frames: list[bytes], at: int, value: int) -> list[bytes]:
    """One byte of the header changed, and its checksum made right again."""
    front = bytearray(frames[0][:76])
    front[at] = value
    return [bytes(front) + struct.pack("<I", wire.crc32c(bytes(front))), *frames[1:]]


UNTRUSTED = {
    "checksum of the header": lambda frames: [frames[0][:-1] + bytes([frames[0][-1] ^ 1]), frames[1]],
    "damaged header": lambda frames: [frames[0][:20] + bytes([frames[0][20] ^ 4]) + frames[0][21:], frames[1]],
    "short header": lambda frames: [frames[0][:40], frames[1]],
    "long header": lambda frames: [frames[0] + b"\0", frames[1]],
    "one frame": lambda frames: frames[:1],
    "three frames": lambda frames: [*frames, b""],
    "delimiter": lambda frames: [b"", *frames],
    "magic": lambda frames: resealed(frames, 0, 0),
    "version": lambda frames: resealed(frames, 4, 2),
}


@pytest.mark.parametrize("damage", UNTRUSTED)
def test_a_header_that_cannot_be_trusted(client: PageClient, damage: str) -> None:
    u = inputs()
    client.run(u)
    client.data.send_multipart(UNTRUSTED[damage](wire.pack_data(*client.run_header(u))))
    header, payload = client.take()
    error = msgpack.unpackb(payload)
    assert (header.operation, header.request, error["code"]) == (wire.ERROR, 0, wire.E_MALFORMED)
    assert not error["state_lost"], "the page's table: unless request 0"
    # It was counted for nothing: the same request, undamaged, is the one that is due.
    assert client.run(u).shape[:2] == u.shape[:2]


@pytest.mark.parametrize("at", [45, 46, 47])
def test_bytes_that_are_zero_on_the_page_must_be_zero(client: PageClient, at: int) -> None:
    client.data.send_multipart(resealed(wire.pack_data(*client.run_header(inputs())), at, 1))
    header, payload = client.take()
    assert header.operation == wire.ERROR
    assert msgpack.unpackb(payload)["code"] == wire.E_MALFORMED


@pytest.mark.parametrize("change", [{"steps": 19}, {"steps": 21}, {"dtype": 9}, {"dtype": wire.NONE}])
def test_a_payload_that_does_not_fit_its_header(client: PageClient, change: dict[str, int]) -> None:
    header, payload = client.run_header(inputs())
    refused = refusal(lambda: client.reply(client.put(replace(header, **change), payload)))
    assert refused.code == wire.E_MALFORMED
    assert refused.error["state_lost"]
    assert not state_is_held(client)


@pytest.mark.parametrize("operation", [wire.RESTORE, wire.UPLOAD, wire.READOUT], ids=["RESTORE", "UPLOAD", "READOUT"])
@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        b"",
        wire.to_msgpack([1, 2]),
        wire.to_msgpack({"weights": 3}),
        wire.to_msgpack({"weights": ["O", [1], bytes(8)]}),
        wire.to_msgpack({"weights": ["f4", [-1, 2], bytes(8)]}),
        wire.to_msgpack({"weights": ["f4", [3], bytes(8)]}),
    ],
    ids=["no msgpack", "empty", "a list", "no array", "objects", "negative shape", "wrong length"],
)
def test_named_arrays_that_are_none(client: PageClient, operation: int, payload: bytes) -> None:
    fields = {"batch": 1} if operation == wire.RESTORE else {}
    refused = refusal(lambda: client.call(operation, payload, **fields))
    assert refused.code == wire.E_MALFORMED
    assert refused.error["state_lost"]
    client.reset()
    assert np.array_equal(client.run(inputs()), local(inputs()))


def test_a_damaged_payload(client: PageClient) -> None:
    header, payload = client.run_header(inputs())
    front, body = wire.pack_data(header, payload)
    client.data.send_multipart([front, bytes([body[0] ^ 1]) + body[1:]])
    client.request += 1
    refused = refusal(lambda: client.reply(header))
    assert refused.code == wire.E_CHECKSUM
    assert refused.error["state_lost"]
    assert not state_is_held(client)
    client.reset()
    assert np.array_equal(client.run(inputs()), local(inputs()))


def test_a_gap_between_requests(client: PageClient) -> None:
    client.request += 1
    refused = refusal(lambda: client.run(inputs()))
    assert refused.code == wire.E_SEQUENCE
    assert refused.error["state_lost"]
    assert not state_is_held(client)
    client.reset()
    assert np.array_equal(client.run(inputs()), local(inputs()))


@pytest.mark.parametrize("step", [0, 19, 21, 2**63])
def test_a_run_that_begins_elsewhere(client: PageClient, step: int) -> None:
    client.run(inputs())
    refused = refusal(lambda: client.reply(client.put(*client.run_header(inputs(), step=step))))
    assert refused.code == wire.E_SEQUENCE
    assert refused.error["state_lost"]
    assert not state_is_held(client)


def test_a_repeated_request_is_dropped(client: PageClient) -> None:
    u = inputs()
    header, payload = client.run_header(u[:, :10])
    for _ in range(3):
        client.put(header, payload)
    client.step = 10
    first = client.states(header)
    for _ in range(2):
        client.put(header, payload)
    second = client.states(client.send_run(u[:, 10:]))
    assert np.array_equal(np.concatenate([first, second], axis=1), local(u))
    assert client.ping()["finished"] == client.request
    assert receive_within(client.data, 0) is None, "no reply to a copy"


@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 5, 2), (1, 5, 4)])
def test_shapes_that_do_not_fit(client: PageClient, shape: tuple[int, int, int]) -> None:
    refused = refusal(lambda: client.states(client.put(*client.run_header(np.zeros(shape, np.float32)))))
    assert refused.code == wire.E_SHAPE
    assert not refused.error["state_lost"]
    assert state_is_held(client)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_no_numbers(client: PageClient, value: float) -> None:
    u = inputs()
    first = client.run(u[:, :10])
    bad = u[:, 10:].copy()
    bad[0, 4, 1] = value
    refused = refusal(lambda: client.states(client.put(*client.run_header(bad))))
    assert refused.code == wire.E_RANGE
    assert not refused.error["state_lost"]
    assert np.array_equal(np.concatenate([first, client.run(u[:, 10:])], axis=1), local(u))


def test_inputs_outside_the_range(bench: Bench) -> None:
    with session(bench.address) as client:
        refused = refusal(lambda: client.states(client.put(*client.run_header(np.full((1, 2, 2), 1.5, np.float32)))))
        assert refused.code == wire.E_RANGE
        assert state_is_held(client)


def test_a_refused_chunk_with_more_behind_it_loses_the_state(client: PageClient) -> None:
    bad = np.full((1, 2, 3), np.nan, np.float32)
    first, second = client.put(*client.run_header(bad, flags=wire.MORE)), client.put(*client.run_header(inputs()))
    refused = refusal(lambda: client.states(first))
    assert refused.code == wire.E_RANGE
    assert refused.error["state_lost"]
    assert refusal(lambda: client.states(second)).code == wire.E_STATE_LOST
    client.reset()
    assert np.array_equal(client.run(inputs()), local(inputs()))


def test_more_sequences_than_declared(bench: Bench) -> None:
    with session(bench.address) as client:
        assert client.declaration["spec"]["max_batch"] == 2
        assert refusal(lambda: client.reset(3)).code == wire.E_TOO_LARGE
        assert state_is_held(client)


def test_a_reset_to_no_sequence(client: PageClient) -> None:
    assert refusal(lambda: client.reset(0)).code == wire.E_SHAPE


def test_states_that_no_frame_could_carry(address: str) -> None:
    with serving(esn(), address, max_frame_bytes=20_000), session(address) as client:
        header = client.put(*client.run_header(inputs(steps=500)))
        refused = refusal(lambda: client.states(header))
        assert refused.code == wire.E_TOO_LARGE
        assert state_is_held(client)


def test_a_frame_that_is_too_large_is_not_taken(address: str) -> None:
    with serving(esn(), address, max_frame_bytes=20_000, lease_s=0.6):
        with PageClient(address) as client:
            client.hello()
            client.attach()
            header = client.send_run(inputs(steps=5000))
            with pytest.raises((LostMessage, Refused)):
                client.states(header)
            client.goodbye()
        with session(address) as other:
            assert np.array_equal(other.run(inputs()), local(inputs()))


@pytest.mark.parametrize("operation", [wire.SNAPSHOT, wire.RESTORE, wire.TRANSITION, wire.UPLOAD, 0x33, 0x00])
def test_operations_that_the_device_does_not_have(bench: Bench, operation: int) -> None:
    named = operation in (wire.RESTORE, wire.UPLOAD)
    with session(bench.address) as client:
        for capability in ("snapshot", "settable", "programmable"):
            assert not client.declaration["spec"][capability]
        if operation == wire.TRANSITION:
            refused = refusal(lambda: client.transition(np.zeros((1, 2)), np.zeros((1, 2)), wire.F4))
        else:
            payload = wire.pack_named({"x": np.zeros((1, 2), np.float32)}) if named else b""
            refused = refusal(lambda: client.call(operation, payload, batch=int(operation == wire.RESTORE)))
        assert refused.code == wire.E_NOT_SUPPORTED
        assert not refused.error["state_lost"]
        assert state_is_held(client)


@pytest.mark.parametrize(
    ("weights", "scale", "bias"),
    [
        (np.zeros((2, NODES - 1), np.float32), np.ones(2, np.float32), np.ones(2, np.float32)),
        (np.zeros(NODES, np.float32), np.ones(1, np.float32), np.ones(1, np.float32)),
        (np.zeros((2, NODES), np.float32), np.ones(3, np.float32), np.ones(2, np.float32)),
        (np.zeros((2, NODES), np.int32), np.ones(2, np.float32), np.ones(2, np.float32)),
    ],
)
def test_a_readout_that_does_not_fit(
    client: PageClient, weights: np.ndarray, scale: np.ndarray, bias: np.ndarray
) -> None:
    refused = refusal(lambda: client.readout(weights, scale, bias))
    assert refused.code == wire.E_CONFIGURATION
    assert not refused.error["state_lost"]
    assert state_is_held(client)


def test_a_snapshot_of_another_device(client: PageClient) -> None:
    state = client.snapshot()
    wrong = {name: array for name, array in state.items() if array.shape != (1, NODES)}
    assert refusal(lambda: client.restore(wrong, batch=1, step=0)).code in (wire.E_CONFIGURATION, wire.E_SHAPE)


@pytest.mark.parametrize(
    ("fault", "code", "lost"),
    [
        (DeviceFault("laser off"), wire.E_FAULT, True),
        (DeviceTimeout("no answer"), wire.E_TIMEOUT, True),
        (DeviceDisconnected("cable"), wire.E_DISCONNECTED, True),
        (CalibrationError("too old"), wire.E_CALIBRATION, False),
        (RuntimeError("oops"), wire.E_INTERNAL, True),
    ],
)
def test_what_goes_wrong_at_the_device(bench: Bench, fault: BaseException, code: int, lost: bool) -> None:
    u = inputs(width=2)
    with session(bench.address) as client:
        before = client.run(u)
        bench.fault, bench.fails_at = fault, 4
        header = client.send_run(u)
        refused = refusal(lambda: client.states(header))
        assert refused.code == code
        assert refused.error["state_lost"] or not lost
        if hasattr(fault, "steps_done"):
            assert (refused.error["steps_done"], refused.error["step"]) == (4, 24)
            harvested = np.frombuffer(refused.error["states"], "<f4").reshape(1, 4, 2)
            assert np.array_equal(harvested[0, 0], before[0, -1] / 2 + u[0, 0])
        bench.fault = None
        client.step = refused.error["step"]
        assert state_is_held(client) == (not refused.error["state_lost"])
        client.reset()
        assert np.array_equal(client.run(u), before)


def test_a_free_running_device_takes_one_run(address: str) -> None:
    with serving(Bench(continuity="free_running"), address), session(address) as client:
        assert client.declaration["chunked"] is False
        client.run(inputs(width=2))
        refused = refusal(lambda: client.run(inputs(width=2)))
        assert refused.code in (wire.E_STATE_LOST, wire.E_DISCONTINUITY)
        assert refused.error["state_lost"]
        client.reset()
        client.run(inputs(width=2))


def test_chunks_for_a_device_that_wants_the_whole_run(address: str) -> None:
    with serving(Bench(continuity="free_running"), address), session(address) as client:
        u = inputs(width=2)
        whole = client.run(u)
        client.reset()
        parts = np.split(u, u.shape[1], axis=1)
        headers = [client.send_run(part, flags=wire.MORE) for part in parts[:-1]]
        headers.append(client.send_run(parts[-1]))
        assert client.welcome["credits"] < len(headers)
        assert np.array_equal(np.concatenate([client.states(header) for header in headers], axis=1), whole)


def test_a_server_that_is_stopped_says_so(address: str) -> None:
    bench = Bench()
    with serving(bench, address) as server, PageClient(address) as client:
        client.hello()
        client.attach()
        bench.gate.clear()
        bench.entered.clear()
        first, second = client.send_run(inputs(width=2)), client.send_run(inputs(width=2))
        assert bench.entered.wait(PATIENCE_S)
        server.stop()
        bench.gate.set()
        assert code_of(lambda: client.states(first)) in (0, wire.E_SHUTTING_DOWN)
        assert refusal(lambda: client.states(second)).code == wire.E_SHUTTING_DOWN


def test_control_messages_that_are_none(address: str) -> None:
    good = wire.pack_control({"op": "status", "id": 77})
    with serving(esn(), address), PageClient(address) as client:
        for frames in (
            [b""],
            [good[:11]],
            [b"XXXX" + good[4:]],
            [good[:4] + b"\2" + good[5:]],
            [good[:6] + b"\1" + good[7:]],
            [good[:-1] + bytes([good[-1] ^ 1])],
            [good, b""],
            [b"", good],
            [wire.pack_control({"op": "status"})],
            [wire.pack_control({"id": 77})],
        ):
            client.control.send_multipart(frames)
            reply = client.ask("status")
            assert reply["op"] == "status", "and no answer to 77 before it"
        assert receive_within(client.control, 0) is None


def test_a_question_that_nobody_knows(address: str) -> None:
    with serving(esn(), address), PageClient(address) as client:
        assert refusal(lambda: client.ask("dance")).code in (wire.E_MALFORMED, wire.E_NOT_SUPPORTED)
        assert refusal(lambda: client.ask("cancel", session=5, request=1)).code == wire.E_NO_SESSION


def test_the_device_has_room_for_its_credits(address: str) -> None:
    bench = Bench()
    with serving(bench, address, credits=5), session(address) as client:
        assert client.welcome["credits"] == 5
        bench.gate.clear()
        u = inputs(width=2, steps=1)
        headers = [client.send_run(u, flags=wire.MORE if n < 4 else 0) for n in range(5)]
        bench.gate.set()
        states = [client.states(header) for header in headers]
        assert np.array_equal(states[1][0, 0], states[0][0, 0] / 2 + u[0, 0])


# ---- the project's client, the page's device ------------------------------------------------------


@pytest.fixture
def device(address: str) -> Iterator[PageDevice]:
    with PageDevice(address) as device:
        yield device


def opened(address: str, **options: Any) -> Reservoir:
    return open_reservoir({"kind": "zmq", "address": address, **options})


def drive(batch: int = 1, steps: int = 30) -> np.ndarray:
    return np.random.default_rng(8).uniform(-1, 1, (batch, steps, leaky.INPUTS)).astype(np.float32)


def test_the_client_drives_a_device_built_from_the_page() -> None:
    address = free_address()
    with PageDevice(address) as device, opened(address) as reservoir:
        spec = reservoir.spec
        assert (spec.inputs, spec.nodes, spec.dtype) == (leaky.INPUTS, leaky.NODES, "float32")
        assert (spec.identity.vendor, spec.identity.model, spec.identity.serial) == ("a bench", "leaky", "7")
        assert not spec.identity.simulated
        assert spec.continuity == "held"
        assert not any((spec.snapshot, spec.settable, spec.programmable))
        u = drive()
        reservoir.reset(1)
        states = np.asarray(reservoir.run(u))
        assert states.dtype == np.float32
        assert np.array_equal(states, leaky.model(u))
        assert device.seen[0].operation == wire.ATTACH
        assert [header.request for header in device.seen] == list(range(1, len(device.seen) + 1))


def test_fields_that_are_not_named_are_zero(device: PageDevice, address: str) -> None:
    with opened(address) as reservoir:
        reservoir.reset(2)
        reservoir.run(drive(2))
        mine = {"session": device.seen[0].session}
    for header in device.seen:
        expected = Header(header.operation, request=header.request, **mine)
        if header.operation == wire.RESET:
            expected.batch = header.batch
        if header.operation == wire.RUN:
            shape = {"batch": 2, "steps": header.steps, "width": leaky.INPUTS, "step": header.step}
            expected = replace(expected, **shape, dtype=wire.I2, scale=leaky.INPUT_SCALE, flags=header.flags)
        assert header == expected


def test_the_client_goes_on_and_begins_again(device: PageDevice, address: str) -> None:
    u = drive(batch=2)
    with opened(address) as reservoir:
        reservoir.reset(2)
        parts = [reservoir.run(u[:, :4]), reservoir.step(u[:, 4])[:, None], reservoir.run(u[:, 5:])]
        assert np.array_equal(np.concatenate(parts, axis=1), leaky.model(u))
        reservoir.reset(2)
        assert np.array_equal(reservoir.run(u), leaky.model(u))


@pytest.mark.parametrize("credits", [1, 2, 8])
def test_the_client_streams_within_the_credits(address: str, credits: int) -> None:
    u = drive(batch=2, steps=200)
    with PageDevice(address, credits=credits) as device, opened(address) as reservoir:
        reservoir.reset(2)
        states = list(reservoir.stream(np.array_split(u, 40, axis=1)))
        assert np.array_equal(np.concatenate(states, axis=1), leaky.model(u))
        assert device.most_waiting <= credits


def test_the_client_keeps_to_the_size_of_a_frame(address: str) -> None:
    u = drive(steps=4000)
    with PageDevice(address, max_frame_bytes=2048) as device, opened(address, chunk_steps=250) as reservoir:
        assert np.array_equal(reservoir.run(u), leaky.model(u))
        assert max(device.payload_sizes) <= 2048


def test_a_device_that_wants_the_whole_run_gets_it_whole(address: str) -> None:
    u = drive(steps=3000)
    with PageDevice(address, chunked=False) as device, opened(address) as reservoir:
        assert np.array_equal(reservoir.run(u), leaky.model(u))
        runs = [header for header in device.seen if header.operation == wire.RUN]
        assert [(header.steps, header.flags) for header in runs] == [(3000, 0)]


def test_a_declaration_of_only_what_is_required(device: PageDevice, address: str) -> None:
    identity = {"vendor": "a bench", "model": "leaky", "simulated": False, "colour": "red"}
    device.declaration["spec"] |= {"identity": identity, "smell": ["of", "solder"]}
    for name in ("dtype", "deterministic", "continuity"):
        del device.declaration["spec"][name]
    device.declaration["weather"] = None
    with opened(address) as reservoir:
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_what_the_device_does_not_have(device: PageDevice, address: str) -> None:
    with opened(address) as reservoir:
        with pytest.raises(NotSupported):
            reservoir.snapshot()
        with pytest.raises(NotSupported):
            reservoir.transition(np.zeros((1, leaky.INPUTS)), np.zeros((1, leaky.NODES)))
        with pytest.raises(NotSupported):
            reservoir.upload({})
        with pytest.raises(InputRangeError):
            reservoir.run(np.full((1, 2, leaky.INPUTS), 1.1, np.float32))
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_the_client_pings_while_nobody_asks_for_anything(address: str) -> None:
    u = drive()
    with PageDevice(address, lease_s=0.4) as device, opened(address) as reservoir:
        first = reservoir.run(u[:, :10])
        started = time.monotonic()
        while time.monotonic() - started < 1.0:
            assert device.pings.acquire(timeout=PATIENCE_S)
        assert not device.freed.is_set()
        assert np.array_equal(np.concatenate([first, reservoir.run(u[:, 10:])], axis=1), leaky.model(u))


def test_the_client_says_goodbye(device: PageDevice, address: str) -> None:
    with opened(address):
        assert not device.freed.is_set()
    assert device.freed.wait(PATIENCE_S)
    with opened(address) as reservoir:
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_the_client_names_who_has_the_device(device: PageDevice, address: str) -> None:
    with session(address, "Ada, room 3"), pytest.raises(DeviceBusy, match="Ada, room 3"):
        opened(address).open()
    with session(address) as client:
        assert client.declaration == device.declaration


def test_the_client_waits_for_a_busy_device(address: str) -> None:
    with PageDevice(address, lease_s=0.4) as device, opened(address) as reservoir:
        gate = threading.Event()

        def hold(header: Header) -> None:
            if header.operation == wire.RUN:
                while device.pings.acquire(blocking=False):
                    pass
                for _ in range(8):
                    assert device.pings.acquire(timeout=PATIENCE_S)
                gate.set()

        device.before = hold
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))
        assert gate.is_set()


def test_no_version_in_common_with_the_device(device: PageDevice, address: str) -> None:
    device.versions = {2, 3}
    with pytest.raises(ReservoirError, match=r"2, 3"):
        opened(address).open()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (wire.E_FAULT, DeviceFault),
        (wire.E_TIMEOUT, DeviceTimeout),
        (wire.E_DISCONNECTED, DeviceDisconnected),
        (wire.E_CALIBRATION, CalibrationError),
        (wire.E_STATE_LOST, StateLost),
        (wire.E_DISCONTINUITY, StateLost),
        (wire.E_INTERNAL, DeviceError),
        (wire.E_NOT_SUPPORTED, NotSupported),
        (wire.E_RANGE, InputRangeError),
        (99, DeviceError),
    ],
)
def test_the_client_passes_errors_on(device: PageDevice, address: str, code: int, kind: type[Exception]) -> None:
    def fail(header: Header) -> None:
        if header.operation == wire.RUN:
            raise Refusal(code, "the pump is off")

    with opened(address) as reservoir:
        device.before = fail
        with pytest.raises(kind, match="the pump is off"):
            reservoir.run(drive())
        device.before = lambda header: None
        reservoir.reset(1)
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_a_device_that_is_shutting_down(device: PageDevice, address: str) -> None:
    def fail(header: Header) -> None:
        if header.operation == wire.RUN:
            raise Refusal(wire.E_SHUTTING_DOWN, "lights out at six")

    device.before = fail
    with opened(address) as reservoir, pytest.raises(DeviceError, match="lights out at six"):
        reservoir.run(drive())


def test_the_client_hands_on_what_was_harvested(device: PageDevice, address: str) -> None:
    u = drive()
    counts = np.rint(leaky.model(u) / leaky.STATE_SCALE).astype("<i2")

    def fail(header: Header) -> None:
        if header.step == 10:
            raise Refusal(wire.E_FAULT, "dark", step=14, steps_done=4, states=counts[:, 10:14].tobytes())

    with opened(address) as reservoir:
        device.before = fail
        reservoir.run(u[:, :10])
        with pytest.raises(DeviceFault, match="dark") as caught:
            reservoir.run(u[:, 10:])
        assert caught.value.steps_done == 4
        assert np.array_equal(np.asarray(caught.value.states), leaky.model(u)[:, 10:14])
        with pytest.raises(StateLost):
            reservoir.run(u)
        reservoir.reset(1)
        device.before = lambda header: None
        assert np.array_equal(reservoir.run(u), leaky.model(u))


def in_every_run(change: Callable[[Header, bytes], Replies]) -> Callable[[Header, bytes], Replies]:
    """`change` for the replies that carry states, the honest reply for the others."""
    return lambda header, payload: change(header, payload) if is_run(header) else [wire.pack_data(header, payload)]


def flipped(frames: list[bytes], frame: int, at: int) -> Replies:
    changed = bytearray(frames[frame])
    changed[at] ^= 0x10
    return [[*frames[:frame], bytes(changed), *frames[frame + 1 :]]]


LIES: dict[str, Callable[[Header, bytes], Replies]] = {
    "too few steps": lambda h, p: [wire.pack_data(replace(h, steps=h.steps - 1), p[: -2 * leaky.NODES])],
    "too few nodes": lambda h, p: [wire.pack_data(replace(h, width=3), p[: len(p) // 4 * 3])],
    "another batch": lambda h, p: [wire.pack_data(replace(h, batch=2), p * 2)],
    "short payload": lambda h, p: [wire.pack_data(h, p[:-1])],
    "long payload": lambda h, p: [wire.pack_data(h, p + b"\0")],
    "empty payload": lambda h, p: [wire.pack_data(h)],
    "another dtype": lambda h, p: [
        wire.pack_data(replace(h, dtype=wire.F4, scale=1.0), wire.numbers(h, p).astype("<f4").tobytes())
    ],
    "no dtype": lambda h, p: [wire.pack_data(replace(h, dtype=77), p)],
    "another scale": lambda h, p: [wire.pack_data(replace(h, scale=1.0), p)],
    "an earlier step": lambda h, p: [wire.pack_data(replace(h, step=h.step - 1), p)],
    "a later step": lambda h, p: [wire.pack_data(replace(h, step=h.step + 1), p)],
    "another operation": lambda h, p: [wire.pack_data(replace(h, operation=wire.RESET | wire.REPLY), p)],
    "another session": lambda h, p: [wire.pack_data(replace(h, session=h.session ^ 1), p)],
    "a later request": lambda h, p: [wire.pack_data(replace(h, request=h.request + 1), p)],
    "another version": lambda h, p: [wire.pack_data(replace(h, version=2), p)],
    "damaged payload": lambda h, p: flipped(wire.pack_data(h, p), 1, 3),
    "damaged header": lambda h, p: flipped(wire.pack_data(h, p), 0, 24),
    "damaged checksum": lambda h, p: flipped(wire.pack_data(h, p), 0, 79),
    "one frame": lambda h, p: [wire.pack_data(h, p)[:1]],
    "three frames": lambda h, p: [[*wire.pack_data(h, p), b""]],
    "delimiter": lambda h, p: [[b"", *wire.pack_data(h, p)]],
    "short header": lambda h, p: [[wire.pack_data(h, p)[0][:79], p]],
    "an error that is none": lambda h, p: [wire.pack_data(replace(h, operation=wire.ERROR, **NAUGHT), b"\xc1")],
    "an error without text": lambda h, p: [wire.pack_data(replace(h, operation=wire.ERROR, **NAUGHT), b"\x80")],
    "no reply": lambda h, p: [],
}
NAUGHT: dict[str, Any] = {"step": 0, "batch": 0, "steps": 0, "width": 0, "dtype": 0, "scale": 1.0}


@pytest.mark.parametrize("lie", LIES)
def test_the_client_delivers_nothing_that_is_wrong(address: str, lie: str) -> None:
    u = drive()
    with PageDevice(address, lease_s=0.6) as device, opened(address, timeout_s=0.3) as reservoir:
        reservoir.run(u[:, :10])
        device.reply = in_every_run(LIES[lie])
        with pytest.raises(DeviceError) as caught:
            reservoir.run(u[:, 10:])
        device.reply = lambda header, payload: [wire.pack_data(header, payload)]
        with pytest.raises(StateLost):
            reservoir.run(u)
    message = str(caught.value)
    assert address in message or "request" in message, "an error says where it happened"


def test_a_repeated_reply_does_no_harm(device: PageDevice, address: str) -> None:
    u = drive()
    device.reply = lambda header, payload: [wire.pack_data(header, payload)] * 3
    with opened(address) as reservoir:
        reservoir.reset(1)
        states = [*reservoir.stream(np.array_split(u[:, :20], 6, axis=1)), reservoir.run(u[:, 20:])]
        assert np.array_equal(np.concatenate(states, axis=1), leaky.model(u))


def test_a_reply_that_is_skipped_within_a_stream(device: PageDevice, address: str) -> None:
    u = drive(steps=40)
    device.reply = in_every_run(lambda h, p: [] if h.step == 20 else [wire.pack_data(h, p)])
    given = []
    with opened(address) as reservoir:
        stream = reservoir.stream(np.array_split(u, 8, axis=1))
        with pytest.raises(DeviceError):
            given.extend(stream)
    assert np.array_equal(np.concatenate(given, axis=1), leaky.model(u)[:, :20])


def test_replies_in_the_wrong_order(device: PageDevice, address: str) -> None:
    held: Replies = []

    def swapped(header: Header, payload: bytes) -> Replies:
        message = wire.pack_data(header, payload)
        if header.step == 5:
            held.append(message)
            return []
        return [message, *held]

    device.reply = in_every_run(swapped)
    with opened(address) as reservoir, pytest.raises(DeviceError):
        list(reservoir.stream(np.array_split(drive(), 6, axis=1)))


def test_a_device_that_was_started_again(address: str) -> None:
    u = drive()
    with PageDevice(address, lease_s=0.6):
        reservoir = opened(address, timeout_s=0.3).open()
        reservoir.run(u)
    with PageDevice(address, lease_s=0.6):
        with pytest.raises((DeviceError, StateLost)) as caught:
            reservoir.run(u)
        assert str(caught.value)
        reservoir.close()
        with opened(address) as again:
            assert np.array_equal(again.run(u), leaky.model(u))


def test_a_device_that_is_gone(address: str) -> None:
    with PageDevice(address, lease_s=0.5):
        reservoir = opened(address, timeout_s=0.3).open()
    with pytest.raises(DeviceError):
        reservoir.run(drive())
    reservoir.close()


def test_a_control_reply_to_an_older_question_is_dropped(device: PageDevice, address: str) -> None:
    device.answer = lambda answer: [{**answer, "id": 10**6}, answer, answer]
    with opened(address) as reservoir:
        assert np.array_equal(reservoir.run(drive()), leaky.model(drive()))


def test_a_declaration_that_makes_no_sense(device: PageDevice, address: str) -> None:
    del device.declaration["spec"]["nodes"]
    with pytest.raises((ProtocolError, DeviceError)):
        opened(address).open()
