"""The simulated delay loop: one nonlinear node with delayed feedback."""
