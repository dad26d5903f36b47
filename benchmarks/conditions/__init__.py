"""Rates and sizes under other conditions: network delay, a long backlog, a cold start, stored jobs."""
