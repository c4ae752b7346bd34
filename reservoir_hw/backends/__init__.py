"""Implementations of `Reservoir`: simulations and devices."""
