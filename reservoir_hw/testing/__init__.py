"""Tests with hardware in the loop."""
