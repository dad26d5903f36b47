"""The run of a claimed job in a worker process: the call of its handler, and the action that settles it."""
