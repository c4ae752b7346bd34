"""The language of instruments, from their side: IEEE 488.2 and SCPI-99."""
