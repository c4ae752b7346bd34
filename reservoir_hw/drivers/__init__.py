"""How to talk to devices: protocols and instruments. Drivers know no reservoirs."""
