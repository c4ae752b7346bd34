"""The device protocol over ZeroMQ (docs/protocol.md): a server for any reservoir, and the client's connection.

Server(MyBench(), "tcp://127.0.0.1:5555").run()
"""

from reservoir_hw.drivers.zeromq.client import Connection
from reservoir_hw.drivers.zeromq.frames import Encoding, encoding_of
from reservoir_hw.drivers.zeromq.security import Allowed, KeyPair, make_keys
from reservoir_hw.drivers.zeromq.server import Server

__all__ = ["Allowed", "Connection", "Encoding", "KeyPair", "Server", "encoding_of", "make_keys"]
