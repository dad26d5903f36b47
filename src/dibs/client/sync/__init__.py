"""The blocking twins of the async handles, and the background event loop they run on."""
