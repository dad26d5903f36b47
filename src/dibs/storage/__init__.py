"""The storages: the protocol, the registry, and one package for each storage.

The packages do not import each other, except that `file` builds on `indexed`, as `memory` does.
"""
