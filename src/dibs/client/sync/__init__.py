"""Blocking forms of the async handles, and the background event loop that runs their calls."""
