"""A board at the end of a serial line, written from docs/serial-protocol.md."""
