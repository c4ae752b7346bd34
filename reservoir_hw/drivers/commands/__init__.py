"""Instruments and boards that are told lines of text, and answer with lines of text or blocks of numbers.

`answers.py` has lines with numbers to be filled in, `answers.py` what is read of an answer, and `instrument.py` the
connection.
"""
