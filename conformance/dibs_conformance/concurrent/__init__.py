"""Tests with concurrent clients (levels L1 and L2): random examples, a scheduler, a linearizability check.

A set of calls is linearizable if the answers of overlapping calls could also come from calls made one after
the other, in some order.
"""
