"""Instruments and boards that are told lines of text, and answer with lines of text or blocks of numbers.

`answers.py` has lines with numbers to be filled in and what is read of an answer, `instrument.py` the
connection.
"""
