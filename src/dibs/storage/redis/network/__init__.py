"""Connections to Redis servers: URL, pool, protocol, cluster routing, Lua scripts, errors."""
