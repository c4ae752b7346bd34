"""The codec of the checker on docs/protocol/golden/, and the files themselves."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from golden_frames import FOLDER, Golden, golden_frames

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.codec import Header
from reservoir_hw.testing.protocol.pipes import INLINE, prefix

TOOL = Path(__file__).resolve().parents[3] / "tools" / "golden_frames.py"
TAKEN = [golden for golden in golden_frames() if not golden.is_spoiled and not golden.is_packet]
PACKETS = [golden for golden in golden_frames() if golden.is_packet]
SPOILED = [golden for golden in golden_frames() if golden.is_spoiled]


def header_of(golden: Golden) -> Header:
    fields = golden.header
    del fields["payload_crc"], fields["header_crc"]
    return Header(**fields)


def payload_of(golden: Golden) -> bytes:
    if golden.map is not None:
        return codec.to_msgpack(golden.map)
    if golden.arrays is not None:
        return codec.pack_named(golden.arrays)
    return np.array(golden.says.get("numbers", []), codec.NUMBERS.get(golden.header["dtype"], "u1")).tobytes()


@pytest.mark.parametrize("golden", TAKEN, ids=lambda golden: golden.name)
def test_written_from_the_description(golden: Golden) -> None:
    if golden.is_control:
        assert golden.map is not None
        assert [codec.pack_control(golden.map)] == golden.frames
    else:
        assert codec.pack_data(header_of(golden), payload_of(golden)) == golden.frames


@pytest.mark.parametrize("golden", TAKEN, ids=lambda golden: golden.name)
def test_read_as_the_description_says(golden: Golden) -> None:
    if golden.is_control:
        assert codec.unpack_control(golden.frames[0]) == golden.map
        return
    header, payload = codec.unpack_data(golden.frames)
    assert header == header_of(golden)
    assert int.from_bytes(golden.frames[0][72:76], "little") == golden.header["payload_crc"]
    assert int.from_bytes(golden.frames[0][76:], "little") == golden.header["header_crc"]
    if "numbers" in golden.says:
        numbers = codec.numbers(header, payload)
        assert numbers.tolist() == golden.says["numbers"]
        assert (numbers * header.scale).tolist() == golden.says["values"]
    if golden.arrays is not None:
        read = codec.unpack_named(payload)
        assert {name: (a.dtype, a.shape, a.tolist()) for name, a in read.items()} == {
            name: (a.dtype, a.shape, a.tolist()) for name, a in golden.arrays.items()
        }


@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden.name)
def test_packets_of_unix_sockets(golden: Golden) -> None:
    (packet,) = golden.frames
    says = golden.says["front"]
    assert packet[:16] == prefix(says["length"], says["place"])
    header, crc = codec.unpack_header(packet[16:96])
    assert (header, crc) == (header_of(golden), 0)
    elsewhere = bytes.fromhex(golden.says.get("elsewhere", {}).get("hex", ""))
    payload = packet[96:] or elsewhere
    assert payload == payload_of(golden)
    assert len(payload) == says["length"]
    assert bool(elsewhere) == (says["place"] != INLINE)


def read(golden: Golden) -> None:
    if golden.is_control:
        codec.unpack_control(golden.frames[0])
    else:
        codec.unpack_data(golden.frames)


@pytest.mark.parametrize("golden", SPOILED, ids=lambda golden: golden.name)
def test_what_is_spoiled_is_not_taken(golden: Golden) -> None:
    with pytest.raises(codec.NotThePage):
        read(golden)


def test_the_files_are_those_that_the_tool_writes() -> None:
    tool = runpy.run_path(str(TOOL))
    written = {
        name: content
        for message in tool["messages"]()
        for name, content in (
            (f"{message.name}.bin", b"".join(message.frames)),
            (f"{message.name}.json", tool["lines_of"](message.description()).encode()),
        )
    }
    assert {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in (".bin", ".json")} == written
