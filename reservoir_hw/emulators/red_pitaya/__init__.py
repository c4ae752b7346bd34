"""An emulated Red Pitaya."""
