"""Conversion between the values of the model and the strings that the Lua scripts read and write."""
