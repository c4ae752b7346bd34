"""States: what a reservoir is driven with, and where its answers are kept."""
