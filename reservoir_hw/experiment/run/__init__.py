"""Running an experiment: from a validated file to a result and its run folder."""
