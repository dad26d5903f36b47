"""Measurements of supervisors with worker processes: `python -m benchmarks.fleet`."""
