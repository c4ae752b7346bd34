"""The simulated echo state network."""
