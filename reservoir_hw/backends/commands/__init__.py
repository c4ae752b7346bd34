"""Instruments and boards that are told lines of text, one step at a time (`kind: commands`)."""
