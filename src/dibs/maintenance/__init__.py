"""The maintenance of queues: reaping expired runs, pruning expired records, enqueueing missing ticks.

Any number of processes may run each of these functions at the same time.
"""
