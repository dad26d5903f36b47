"""L0 of the kit: one call at a time, the storage and the oracle side by side."""
