"""Level L0 of the kit: one call at a time, on the storage and on the oracle, with equal results."""
