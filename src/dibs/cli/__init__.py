"""The command line. It imports every layer of dibs below it, and storages only through the registry."""
