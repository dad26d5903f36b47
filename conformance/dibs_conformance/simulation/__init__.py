"""The deterministic simulation of the whole system: clients, workers and supervisors run unchanged in one
process, on event loops with virtual time, around one storage behind a simulated network.

docs/explanation/simulation.md says what it runs, what it checks, and how to repeat a failing seed.
"""
