"""Signals and devices in volts and seconds: what lies between the terminals of emulated instruments."""
