"""Readouts of somebody's own: a torch module, and an estimator of scikit-learn."""
