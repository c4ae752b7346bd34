"""Linear readouts: ridge regression, and readouts that learn with every step."""
