"""The figures that Tong et al. 2007 print in their Tables 2 and 4."""

VERB_SHARES = (28.03, 38.15, 14.47, 9.93, 5.66, 2.34, 1.42)
"""Table 4: per cent of the verbs at each of `DISTANCES` from their noun."""

AGREEMENT_ERROR = {
    "bigram": (0.00, 0.53, 0.00, 0.48, 0.51, 0.51, 0.54),
    "trigram": (0.00, 0.00, 0.00, 0.23, 0.47, 0.50, 0.42),
    "SRN(70)": (0.00, 0.00, 0.00, 0.39, 0.48, 0.45, 0.57),
    "ESN(50)": (0.02, 0.00, 0.02, 0.47, 0.53, 0.48, 0.47),
    "ESN(300)": (0.04, 0.00, 0.00, 0.29, 0.40, 0.46, 0.61),
    "ESN(1000)": (0.03, 0.00, 0.00, 0.08, 0.26, 0.43, 0.36),
}
"""Table 4: verb agreement error at each of `DISTANCES`."""

AUC = {
    "bigram": (0.93, 0.84, 0.81, 0.78),
    "trigram": (0.93, 0.96, 0.96, 0.93),
    "SRN(70)": (0.96, 0.96, 0.97, 0.94),
    "ESN(50)": (0.95, 0.91, 0.90, 0.80),
    "ESN(300)": (0.96, 0.94, 0.94, 0.86),
    "ESN(1000)": (0.95, 0.96, 0.97, 0.89),
}
"""Table 2: AUC of nouns and of transitive, optionally transitive and intransitive verbs.

The table calls its last row SRN(1000); the text says it is the ESN.
"""
