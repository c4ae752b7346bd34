"""Gateware and firmware sources, shipped as package data."""
