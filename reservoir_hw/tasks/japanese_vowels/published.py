"""Errors on the Japanese vowels that papers print."""

ERRORS = (("1000 echo state networks of 4 nodes, voting (Jaeger et al. 2007)", "0", "0.00%"),)
"""What, errors, error rate; of the 370 utterances of the test."""
