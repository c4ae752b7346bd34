"""The device protocol over ZeroMQ (docs/protocol.md): frames, keys, and the client's connection.

A server for any reservoir is in `reservoir_hw.serving`.
"""

from reservoir_hw.drivers.codes import Encoding, encoding_of
from reservoir_hw.drivers.zeromq.client import Connection, release_hung, status_of
from reservoir_hw.drivers.zeromq.security import Allowed, KeyPair, make_keys

__all__ = ["Allowed", "Connection", "Encoding", "KeyPair", "encoding_of", "make_keys", "release_hung", "status_of"]
