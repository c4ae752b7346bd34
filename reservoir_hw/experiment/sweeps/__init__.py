"""What stands behind `reservoir_hw.experiment.sweep`: the search space, the study, its storage, and what was found."""
