"""Tests with concurrent clients (levels L1 and L2): random examples, a scheduler, and a linearizability
check.
"""
