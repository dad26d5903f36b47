"""The history of every run: what an increment reads, counts and keeps in the warehouse."""
