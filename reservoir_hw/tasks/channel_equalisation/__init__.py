"""Equalisation of a nonlinear radio channel."""
