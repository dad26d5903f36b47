"""The jobs that run flows: the start of a flow, and its evaluations."""
