"""What an app tells of its work: logs, metrics, traces. Each module is imported by who wants it, no other."""
