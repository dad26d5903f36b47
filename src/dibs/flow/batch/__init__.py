"""Batches: any number of jobs that are streamed in, with callbacks after their end.

A *batch* is a job of the queue `dibs.flows`, like a flow. Its *members* are enqueued in *segments*: each is
a flow of up to 1,000 nodes without edges, which completes whatever its nodes do. The evaluation of the batch
counts the segments that have ended, enqueues the callbacks and ends the batch. The reasons are in
docs/decisions/flows.md.
"""
