"""The supervisor of workers: leases, deadlines, crash recovery, maintenance and health."""
