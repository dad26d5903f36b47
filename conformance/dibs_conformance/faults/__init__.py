"""Servers that are killed, fill up, forget or refuse: accepted is kept, refused did not happen."""
