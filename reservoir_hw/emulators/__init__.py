"""Emulated instruments on real sockets, and a simulated bench between them. They know no reservoir."""
