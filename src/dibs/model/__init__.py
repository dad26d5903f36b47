"""The values of a job and the rules of the contract, as pure functions.

The functions take time and chance as arguments; no module of this package awaits, reads a clock or does I/O.
Read `job` for the parts of an id, `requests` for the arguments of the verbs of a storage, `results` for their
results, and `rules` and `transitions` for the decisions.
"""
