"""The connection of an app to its storage: opening, coalesced calls, transactions, waits for outcomes."""
