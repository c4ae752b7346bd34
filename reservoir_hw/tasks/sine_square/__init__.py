"""Sine or square: which wave the input is."""
