"""Flows: jobs that wait for each other, enqueued together as one job that carries the plan.

A *flow* is a job of the queue `dibs.flows`. Its *plan* has the *nodes*, which are the jobs of the flow, and
the edges between them. An *evaluation* is a job of the queue `dibs.flows.evaluate` with the id of the flow.
It reads the states of nodes and enqueues those whose parents have ended (docs/decisions/flows.md).
"""
