"""Recall and prediction of the inputs of a recorded trace."""
