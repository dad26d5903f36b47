"""A storage and the oracle in lockstep: each verb is called on both, and the results must be equal."""
