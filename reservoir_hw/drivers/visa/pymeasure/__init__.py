"""Instruments that PyMeasure has a class for. PyMeasure itself is imported when they are built."""
