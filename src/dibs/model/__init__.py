"""The values of a job, and the rules of the contract as pure functions.

No module of this package awaits, reads a clock, draws random numbers or does I/O: callers pass the time and
the random numbers as arguments. The contract is docs/explanation/contract.md; "contract 3" is its section 3.

`job` defines the stored values. `requests` and `results` define the arguments and results of the operations
of a storage, which the contract calls verbs. `rules` and `transitions` hold the decisions.
"""
