"""Random networks: topologies, weights, spectral radius. Simulations and trained models draw theirs here."""
