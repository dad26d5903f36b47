"""Conversion between the values of dibs.model and the byte strings that the Lua scripts read and write."""
