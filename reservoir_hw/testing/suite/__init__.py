"""The conformance suite: one file for each group of statements about a device."""
