"""Instruments of Keysight."""
