"""The contract of a reservoir, and what everybody stands on: configuration, errors, files, seeds, the signal chain."""
