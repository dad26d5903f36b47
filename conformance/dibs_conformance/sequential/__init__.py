"""Level L0 of the kit: one call at a time, on the storage under test and on the oracle.

The oracle is a simple implementation of the contract in memory. Both must return equal results.
"""
