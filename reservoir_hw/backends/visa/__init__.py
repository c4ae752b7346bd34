"""A waveform generator, a device under test and a digitizer as a reservoir (`kind: visa`)."""
