"""Calls of handlers: signatures, payloads, limits, middleware, and the job of the running handler."""
