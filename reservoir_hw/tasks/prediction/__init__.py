"""What the tasks share that ask how a series goes on."""
