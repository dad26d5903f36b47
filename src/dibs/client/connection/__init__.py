"""The open storage of an app: opening it, coalescing calls, transactions, waiting for outcomes."""
