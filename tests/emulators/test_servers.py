"""The servers as a foreign client sees them: pyvisa with pyvisa-py, which nobody here wrote."""

import contextlib
import socket
import struct
import threading

import numpy as np
import pytest
import pyvisa
from emulators.toy_generator import TRACE, ToyGenerator
from pyvisa.errors import VisaIOError

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.servers import HislipServer, SocketServer

NO_ERROR = '0,"No error"'


@pytest.fixture(scope="module")
def manager():
    resources = pyvisa.ResourceManager("@py")
    yield resources
    resources.close()


@pytest.fixture
def device():
    return ToyGenerator()


def opened(manager, address):
    terminator = {"read_termination": "\n", "write_termination": "\n"}
    return contextlib.closing(manager.open_resource(address, timeout=5000, **terminator))


@pytest.mark.parametrize("serving", [SocketServer, HislipServer])
def test_queries_blocks_and_two_connections(manager, device, serving):
    with serving(device) as address, opened(manager, address) as one, opened(manager, address) as other:
        assert one.query("*IDN?") == "Toys,G1,42,1.0"
        one.write("SOUR2:FREQ 5 KHZ")
        # The answer says that the command was carried out.
        assert one.query("SYST:ERR?") == NO_ERROR
        assert float(other.query("SOUR2:FREQ?")) == 5e3
        samples = np.random.default_rng(1).integers(-32767, 32767, 1_000_000).astype(">i2")
        one.write_binary_values("DATA:ARB:DAC r1,", samples, datatype="h", is_big_endian=True)
        ascii_samples = ", ".join(map(str, samples[:20_000]))
        other.write("SOUR:DATA:ARB:DAC r2, " + ascii_samples)
        assert other.query("SYST:ERR?") == one.query("SYST:ERR?") == NO_ERROR
        np.testing.assert_array_equal(device.waveforms["r1"], samples)
        np.testing.assert_array_equal(device.waveforms["r2"], samples[:20_000])
        trace = one.query_binary_values("WAV:DATA?", datatype="B", container=np.array, chunk_size=1 << 20)
        np.testing.assert_array_equal(trace, TRACE)
        assert other.query("*IDN?;*TRG;:FOO") == "Toys,G1,42,1.0"
        assert one.query("SYST:ERR?") == '-113,"Undefined header"', "the queue belongs to the instrument"


def test_an_interrupted_query_on_hislip(manager, device):
    with HislipServer(device) as address, opened(manager, address) as client:
        client.write("WAV:DATA?")
        assert client.query("OUTP?") == "0", "the unread answer is gone"
        assert client.query("SYST:ERR?") == '-410,"Query INTERRUPTED"'
        assert client.query("SYST:ERR?") == NO_ERROR


def test_status_byte_and_trigger_on_hislip(manager, device):
    with HislipServer(device) as address, opened(manager, address) as client:
        client.write("*ESE 32")
        session = client.visalib.sessions[client.session].interface
        session.trigger()
        assert client.query("*OPC?") == "1"
        assert (device.triggers, client.read_stb()) == (1, 0)
        client.write("*IDN?;FOO")
        # An answer that has come was sent before its status is asked for.
        session._sync.recv(1, socket.MSG_PEEK)
        assert client.read_stb() == 0x10 | 0x20 | 0x04
        assert client.read() == "Toys,G1,42,1.0"
        assert client.read_stb() == 0x20 | 0x04
        assert client.query("OUTP?;*CLS") == "0"
        assert client.query("SYST:ERR?") == NO_ERROR, "the status query said that the answer was read"


def test_messages_in_pieces_on_hislip(manager, device):
    with HislipServer(device) as address, opened(manager, address) as client:
        session = client.visalib.sessions[client.session].interface
        session.max_msg_size = 1 << 16
        np.testing.assert_array_equal(client.query_binary_values("WAV:DATA?", "B", container=np.array), TRACE)
        # pyvisa-py takes the server's limit for its own.
        session._max_msg_size = 1 << 16
        client.write_binary_values("DATA:RAW ", TRACE, "B")
        assert client.query("SYST:ERR?") == NO_ERROR
        assert device.waveforms["raw"] == TRACE.tobytes()
        assert session.async_lock_request(1.0) == session.async_lock_release() == "success"


def test_device_clear_on_hislip(manager, device):
    device.idle.clear()
    with HislipServer(device) as address, opened(manager, address) as client:
        client.timeout = 50
        with pytest.raises(VisaIOError, match="Timeout"):
            client.query("*OPC?;:FREQ 7")
        client.timeout = 5000
        assert client.read_stb() == 0, "the status byte does not wait"
        client.clear()
        assert client.query("*IDN?") == "Toys,G1,42,1.0"
        assert client.query("SYST:ERR?") == NO_ERROR
        # The piece of a message that came before the clear is forgotten, too.
        client.visalib.sessions[client.session].interface._send_data_packet(b"FREQ 7;")
        client.clear()
        assert client.query("*IDN?") == "Toys,G1,42,1.0"
        assert device.frequencies[1] == 1e3


@pytest.mark.parametrize("serving", [SocketServer, HislipServer])
def test_a_connection_that_closes_ends_its_wait(manager, device, serving):
    device.idle.clear()
    with serving(device) as address:
        with opened(manager, address) as client:
            client.write("*OPC?")
            assert device.waiting.wait(5)
            client.write("FREQ 7")
        with opened(manager, address) as client:
            assert client.query("*IDN?") == "Toys,G1,42,1.0"


def test_a_connection_that_closes_in_the_middle_of_a_block(manager, device):
    server = SocketServer(device)
    with server as at:
        for part in (b"DATA:RAW #7100", b"DATA:RAW #71000000" + b"\n" * 500_000, b"FREQ 7"):
            with socket.create_connection((server.host, server.port)) as half:
                half.sendall(part)
        with opened(manager, at) as client:
            assert client.query("SYST:ERR?") == NO_ERROR
    assert device.waveforms == {}
    assert device.frequencies[1] == 1e3
    hislip = HislipServer(device)
    with hislip as at:
        address = (hislip.host, hislip.port)
        with socket.create_connection(address) as half, socket.create_connection(address) as other:
            half.sendall(struct.pack("!2sBBIQ", b"HS", 0, 0, 0x01000000, 7) + b"hislip0")
            session = struct.unpack("!2sBBIQ", half.recv(16))[3] & 0xFFFF
            other.sendall(struct.pack("!2sBBIQ", b"HS", 17, 0, session, 0))
            assert other.recv(16)[2] == 18
            half.sendall(struct.pack("!2sBBIQ", b"HS", 7, 0, 0, 1000) + b"DATA:RAW #3500" + b"\n" * 100)
        with opened(manager, at) as client:
            assert client.query("SYST:ERR?") == NO_ERROR
    assert device.waveforms == {}


def test_stopping_ends_all_threads(manager, device):
    device.idle.clear()
    threads = threading.active_count()
    with SocketServer(device) as address, HislipServer(device) as hislip:
        with opened(manager, hislip) as two, opened(manager, address) as one:
            two.query("*IDN?")
            one.write("*OPC?")
            assert device.waiting.wait(5)
            port = int(address.split("::")[2])
            with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{port}: .* choose another port"):
                SocketServer(device, port=port).__enter__()
        # Both clients have gone; a third one is still there when the servers stop.
        third = socket.create_connection(("127.0.0.1", port))
    # The kernel resets it where the server had not accepted it yet.
    with contextlib.suppress(ConnectionResetError):
        assert third.recv(1) == b""
    third.close()
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("first", "kind", "text"),
    [
        (b"GET / HTTP/1.1\r\n", 2, b"the header does not begin with HS"),
        (struct.pack("!2sBBIQ", b"HS", 0, 0, 0x01000000, 7) + b"hislip9", 2, b"there is no hislip9 here, only hislip0"),
        (struct.pack("!2sBBIQ", b"HS", 17, 0, 9, 0), 2, b"a connection begins with Initialize"),
        (struct.pack("!2sBBIQ", b"HS", 7, 0, 0, 1 << 40), 2, b"a message of 1099511627776 bytes is too large"),
    ],
)
def test_hislip_refuses_other_protocols(device, first, kind, text):
    server = HislipServer(device)
    with server, socket.create_connection((server.host, server.port)) as client:
        client.sendall(first)
        answer = client.makefile("rb").read()
    assert answer[:3] == b"HS" + bytes([kind])
    assert answer[16:].startswith(text)
