"""Looking for good settings with Optuna."""
