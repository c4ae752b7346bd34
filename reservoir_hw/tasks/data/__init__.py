"""A user's own data as a task: from tables, arrays or a function."""
