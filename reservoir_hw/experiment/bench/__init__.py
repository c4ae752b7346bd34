"""One reservoir on all standard tasks, beside baselines that were tuned as it was."""
