"""Simulated reservoirs."""
