"""Benchmarks of dibs: rates of the storages next to baselines of the same machine, and other measurements."""
