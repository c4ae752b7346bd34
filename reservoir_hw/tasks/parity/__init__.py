"""Delayed parity of the last bits."""
