"""Measurements of flows: dibs and other job queues, run by `python -m benchmarks.flows`."""
