"""The frames of docs/protocol/golden/, read and written by the client's and the server's codec."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from golden_frames import Golden, golden_frames

from reservoir_hw.core.errors import ProtocolError
from reservoir_hw.drivers.codes import Encoding
from reservoir_hw.drivers.zeromq.frames import (
    Header,
    array_of,
    check_payload,
    pack_arrays,
    pack_control,
    pack_header,
    pack_map,
    unpack_arrays,
    unpack_control,
    unpack_header,
    unpack_map,
)

TAKEN = [golden for golden in golden_frames() if not golden.is_spoiled and not golden.is_packet]
PACKETS = [golden for golden in golden_frames() if golden.is_packet]
SPOILED = [golden for golden in golden_frames() if golden.is_spoiled and len(golden.frames) == 2 - golden.is_control]


def header_of(golden: Golden) -> Header:
    fields = golden.header
    del fields["payload_crc"], fields["header_crc"], fields["version"]
    time_ns, period_s = fields.pop("time"), fields.pop("period")
    return Header(**fields, time_ns=time_ns, period_s=period_s)


def payload_of(golden: Golden) -> bytes:
    if golden.map is not None:
        return pack_map(golden.map)
    if golden.arrays is not None:
        return pack_arrays(golden.arrays)
    if "values" not in golden.says:
        return b""
    encoding = Encoding(golden.header["dtype"], golden.header["scale"])
    return encoding.encode(np.array(golden.says["values"])).tobytes()


@pytest.mark.parametrize("golden", TAKEN, ids=lambda golden: golden.name)
def test_written_from_the_description(golden: Golden) -> None:
    if golden.is_control:
        assert golden.map is not None
        assert [pack_control(golden.map)] == golden.frames
    else:
        payload = payload_of(golden)
        assert [pack_header(header_of(golden), payload), payload] == golden.frames


@pytest.mark.parametrize("golden", TAKEN, ids=lambda golden: golden.name)
def test_read_as_the_description_says(golden: Golden) -> None:
    if golden.is_control:
        assert unpack_control(golden.frames[0]) == golden.map
        return
    front, payload = golden.frames
    header, crc = unpack_header(front)
    check_payload(memoryview(payload), crc)
    assert header == header_of(golden)
    if "values" in golden.says:
        numbers = array_of(header, memoryview(payload))
        assert numbers.tolist() == golden.says["numbers"]
        assert Encoding(header.dtype, header.scale).decoded(numbers, np.dtype("f8")).tolist() == golden.says["values"]
    elif golden.arrays is not None:
        read = unpack_arrays(payload)
        assert list(read) == list(golden.arrays)
        for name, array in golden.arrays.items():
            assert (read[name].dtype, read[name].tolist()) == (array.dtype, array.tolist())
    elif golden.map is not None:
        assert unpack_map(payload) == golden.map


@pytest.mark.skipif(sys.platform != "linux", reason="unix addresses need Linux")
@pytest.mark.parametrize("golden", PACKETS, ids=lambda golden: golden.name)
def test_packets_of_unix_sockets(golden: Golden) -> None:
    from reservoir_hw.drivers.zeromq.unix_sockets import _front, _unpack_front

    (packet,) = golden.frames
    says = golden.says["front"]
    assert packet[:16] == _front(says["length"], says["place"])
    assert _unpack_front(packet[:16]) == (says["length"], says["place"])
    assert unpack_header(packet[16:96]) == (header_of(golden), 0)


def read(golden: Golden) -> None:
    if golden.is_control:
        unpack_control(golden.frames[0])
    else:
        front, payload = golden.frames
        check_payload(memoryview(payload), unpack_header(front)[1])


@pytest.mark.parametrize("golden", SPOILED, ids=lambda golden: golden.name)
def test_what_is_spoiled_is_not_taken(golden: Golden) -> None:
    with pytest.raises(ProtocolError):
        read(golden)
