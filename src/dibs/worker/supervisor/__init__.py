"""The supervisor: it starts worker processes, renews their leases and recovers the jobs of dead ones."""
