"""The command line. It may import everything below it, and storages only through their registry."""
