"""Recall of earlier inputs."""
