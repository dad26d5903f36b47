"""A task's function: its signature, its handler, and the job that is running it."""
