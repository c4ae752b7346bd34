"""Emulated instruments on real sockets, for benches and tests where there is no instrument.

An emulator rejects what its instrument rejects. It knows nothing of reservoirs, masks and drivers.
"""
