"""The frames of the protocol: what was packed is unpacked, and nothing else gets past the decoders."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.extra.numpy as arrays
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw.core.errors import ConfigurationError, ProtocolError
from reservoir_hw.drivers.codes import DTYPES
from reservoir_hw.drivers.zeromq import frames
from reservoir_hw.drivers.zeromq.frames import Header

# The machine may be busy with other tests.
unhurried = settings(deadline=None)
# Arrays take long to draw.
few = settings(deadline=None, max_examples=30)

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
doubles = st.floats(allow_nan=False)
headers = st.builds(
    Header,
    operation=u8,
    session=u64,
    request=u64,
    flags=u16,
    step=u64,
    batch=u32,
    steps=u32,
    width=u32,
    dtype=u8,
    scale=doubles,
    time_ns=u64,
    period_s=doubles,
)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | doubles
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
wire_dtypes = st.sampled_from(sorted({dtype.str for dtype in frames._ARRAY_DTYPES.values()})).map(np.dtype)
named_arrays = st.dictionaries(
    st.text(max_size=10),
    wire_dtypes.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0))),
    max_size=4,
)
array_dtypes = st.sampled_from(sorted(DTYPES))


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@contextlib.contextmanager
def little_memory(most: int) -> Iterator[None]:
    """Fails if more memory is taken at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


# ---- what was packed is unpacked ---------------------------------------------------------------


@unhurried
@given(headers, st.binary(max_size=100))
def test_headers(header: Header, payload: bytes) -> None:
    packed = frames.pack_header(header, payload)
    assert len(packed) == frames.HEADER_BYTES == 80
    unpacked, crc = frames.unpack_header(packed)
    assert unpacked == header
    frames.check_payload(memoryview(payload), crc)


@unhurried
@given(array_dtypes, arrays.array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=5), st.data())
def test_array_payloads(dtype: int, shape: tuple[int, int, int], data: st.DataObject) -> None:
    numbers = data.draw(arrays.arrays(DTYPES[dtype], shape))
    header = Header(3, 1, 1, batch=shape[0], steps=shape[1], width=shape[2], dtype=dtype)
    unpacked, crc = frames.unpack_header(frames.pack_header(header, numbers))
    payload = memoryview(numbers.tobytes())
    frames.check_payload(payload, crc)
    assert same(frames.array_of(unpacked, payload), numbers)


@pytest.mark.slow
@few
@given(named_arrays)
def test_named_arrays(content: dict[str, np.ndarray]) -> None:
    unpacked = frames.unpack_arrays(frames.pack_arrays(content))
    assert unpacked.keys() == content.keys()
    assert all(same(unpacked[name], content[name]) for name in content)
    assert all(array.flags.writeable for array in unpacked.values())


def test_arrays_as_they_come() -> None:
    big_endian, strided = np.arange(3, dtype=">i4"), np.arange(10.0)[::3]
    unpacked = frames.unpack_arrays(frames.pack_arrays({"a": big_endian, "b": strided}))
    assert np.array_equal(unpacked["a"], big_endian)
    assert np.array_equal(unpacked["b"], strided)
    with pytest.raises(ConfigurationError, match="complex128"):
        frames.pack_arrays({"a": np.zeros(2, complex)})


def test_a_truth_value_is_0_or_1() -> None:
    odd = msgpack.packb({"a": ["b1", [3], b"\x00\x02\xff"]})
    array = frames.unpack_arrays(odd)["a"]
    assert array.dtype == np.bool_
    assert array.tobytes() == b"\x00\x01\x01"


@unhurried
@given(st.text(max_size=10), st.integers(-(2**63), 2**64 - 1), st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_control_messages(op: str, number: int, more: dict[str, Any]) -> None:
    message = {**more, "op": op, "id": number}
    assert frames.unpack_control(frames.pack_control(message)) == message


# ---- nothing else gets past ---------------------------------------------------------------------


def decode_data(message: list[bytes]) -> None:
    header, crc = frames.unpack_header(message[0])
    payload = memoryview(message[1])
    frames.check_payload(payload, crc)
    frames.array_of(header, payload)


@unhurried
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_as_a_data_message(header: bytes, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_data([header, payload])


@unhurried
@given(headers, st.binary(max_size=64))
def test_any_header_with_right_checksums(header: Header, payload: bytes) -> None:
    """Whoever builds a device can get everything wrong except the checksums."""
    with little_memory(1 << 20), contextlib.suppress(ProtocolError):
        decode_data([frames.pack_header(header, payload), payload])


@unhurried
@given(array_dtypes, st.tuples(u32, u32, u32), st.permutations([0, 1, 2]))
def test_empty_arrays_of_any_shape(dtype: int, lengths: tuple[int, int, int], order: list[int]) -> None:
    shape = [0, *lengths[1:]]
    batch, steps, width = (shape[k] for k in order)
    header = Header(3, 1, 1, batch=batch, steps=steps, width=width, dtype=dtype)
    with contextlib.suppress(ProtocolError):
        assert frames.array_of(header, memoryview(b"")).shape == (batch, steps, width)
    content = msgpack.packb({"a": ["f4", [batch, steps, width, 2**64 - 1], b""]})
    with pytest.raises(ProtocolError):
        frames.unpack_arrays(content)


def mutated(data: st.DataObject, frame: bytes) -> bytes:
    """The frame with something changed, missing or added."""
    match data.draw(st.sampled_from(["flip", "cut", "add", "replace"])):
        case "flip":
            changed = bytearray(frame)
            for bit in data.draw(st.lists(st.integers(0, 8 * len(frame) - 1), min_size=1, max_size=5, unique=True)):
                changed[bit // 8] ^= 1 << (bit % 8)
            return bytes(changed)
        case "cut":
            return frame[: data.draw(st.integers(0, len(frame) - 1))]
        case "add":
            return frame + data.draw(st.binary(min_size=1, max_size=10))
        case _:
            start = data.draw(st.integers(0, len(frame) - 1))
            new = data.draw(st.binary(min_size=1, max_size=20).filter(lambda new: not frame[start:].startswith(new)))
            return frame[:start] + new + frame[start + len(new) :]


@pytest.mark.slow
@unhurried
@given(headers, st.binary(min_size=1, max_size=100), st.booleans(), st.data())
def test_a_damaged_data_message(header: Header, payload: bytes, in_header: bool, data: st.DataObject) -> None:
    packed = frames.pack_header(header, payload)
    damaged = [mutated(data, packed), payload] if in_header else [packed, mutated(data, payload)]

    def receive() -> None:
        _, crc = frames.unpack_header(damaged[0])
        frames.check_payload(memoryview(damaged[1]), crc)

    with pytest.raises(ProtocolError):
        receive()


@unhurried
@given(st.dictionaries(st.text(max_size=5), plain, max_size=4), st.data())
def test_a_damaged_control_message(more: dict[str, Any], data: st.DataObject) -> None:
    packed = frames.pack_control({**more, "op": "ping", "id": 7})
    with pytest.raises(ProtocolError):
        frames.unpack_control(mutated(data, packed))


def checked_control(body: bytes) -> bytes:
    """A control frame whose checksum is right, whatever is in it."""
    return frames._CONTROL.pack(b"RHWC", 1, bytes(3), frames.checksum(body)) + body


@unhurried
@given(st.binary(max_size=300) | plain.map(msgpack.packb))
def test_any_body_with_a_right_checksum(body: bytes) -> None:
    for decode in (frames.unpack_map, frames.unpack_arrays, lambda body: frames.unpack_control(checked_control(body))):
        with little_memory(1 << 20), contextlib.suppress(ProtocolError):
            decode(body)


@few
@given(named_arrays.filter(bool), st.data())
def test_damaged_named_arrays(content: dict[str, np.ndarray], data: st.DataObject) -> None:
    """Here no checksum helps: a msgpack map that is not quite one."""
    with little_memory(1 << 20), contextlib.suppress(ProtocolError):
        unpacked = frames.unpack_arrays(mutated(data, frames.pack_arrays(content)))
        assert all(isinstance(array, np.ndarray) for array in unpacked.values())


def lists_in_lists(length: int) -> bytes:
    """1000 lists, each the first entry of the one before, each said to have so many entries."""
    return (b"\xdd" + length.to_bytes(4, "big")) * 1000


HUGE: dict[str, bytes] = {
    "list": b"\xdd\xff\xff\xff\xff",
    "map": b"\xdf\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "text": b"\xdb\xff\xff\xff\xff",
    "extension": b"\xc9\xff\xff\xff\xff\x01",
    "lists that claim their limit": lists_in_lists(frames.LARGEST_LIST - 1),
    "lists that claim all that came": lists_in_lists(900_000) + bytes(900_000),
    "depth": b"\x91" * 100_000,
    "empty lists": b"\xdd\x00\x0f\x00\x00" + b"\x90" * 0xF0000,
}


@pytest.mark.parametrize("body", HUGE.values(), ids=HUGE.keys())
@pytest.mark.parametrize("decode", [frames.unpack_map, frames.unpack_arrays], ids=["map", "arrays"])
def test_messages_that_claim_much(decode: Callable[[bytes], Any], body: bytes) -> None:
    # A list of the largest length takes half a megabyte, and msgpack allows a thousand in each other.
    with little_memory(600 << 20), pytest.raises(ProtocolError):
        decode(body)


def test_limits() -> None:
    with pytest.raises(ProtocolError, match="bytes"):
        frames.unpack_control(checked_control(bytes(frames.LARGEST_CONTROL)))
    with pytest.raises(ProtocolError, match="more than 4096"):
        frames.unpack_arrays(msgpack.packb({str(n): 0 for n in range(frames.LARGEST_ARRAYS + 1)}))
    with pytest.raises(ProtocolError, match="name"):
        frames.unpack_arrays(msgpack.packb({"a" * 1000: ["f4", [0], b""]}))
    with pytest.raises(ProtocolError, match="shape"):
        frames.unpack_arrays(msgpack.packb({"a": ["f4", [1] * 9, b"1234"]}))
    with pytest.raises(ProtocolError, match="op and id"):
        frames.unpack_control(frames.pack_control({"op": "ping", "id": True}))
