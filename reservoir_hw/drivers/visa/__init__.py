"""Instruments that speak SCPI over VISA."""
