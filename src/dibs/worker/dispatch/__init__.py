"""The loop of a worker process, which claims jobs, starts their runs and settles them."""
