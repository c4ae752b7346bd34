"""A lab's own Python functions as a reservoir (`kind: python`)."""
