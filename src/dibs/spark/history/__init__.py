"""The history of all runs: increments from the logs of a storage, and a warehouse of Delta tables."""
