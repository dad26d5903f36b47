"""dibs beside the systems of its field, each at its own best settings: `python -m benchmarks.peers`."""
