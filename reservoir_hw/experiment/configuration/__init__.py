"""The experiment file and its sections."""
