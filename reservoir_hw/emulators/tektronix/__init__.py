"""Instruments of Tektronix."""
