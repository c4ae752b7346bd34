"""A reservoir offered to others over the protocol of docs/protocol.md.

Server(MyBench(), "tcp://127.0.0.1:5555").run()
"""

from typing import TYPE_CHECKING

from reservoir_hw.core.lazy import lazy_names

if TYPE_CHECKING:
    from reservoir_hw.serving.server import Server as Server

__getattr__, __dir__ = lazy_names(__name__)
