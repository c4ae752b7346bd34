"""How a simulated device departs from its equations."""
