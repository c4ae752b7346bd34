"""The simulated gated echo state network."""
