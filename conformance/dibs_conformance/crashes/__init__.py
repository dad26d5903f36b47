"""Clients that die, stop, give up or are cut off: what was under way happened whole, or not at all."""
