"""The comparison of dibs with other job queues, each at its best settings: `python -m benchmarks.peers`."""
