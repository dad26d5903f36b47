"""What `benchmarks.fleet` is made of: handlers that processes import, the work they do, and how they die."""
