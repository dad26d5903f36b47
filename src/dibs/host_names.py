"""The check of the header Host against DNS rebinding, for each HTTP server of dibs.

The owner of evil.example can let this name lead to 127.0.0.1 after a browser has loaded a page from it. The
browser then sends the requests of the page to a server of this machine, with evil.example in the header Host,
and lets the page read the answers. Nobody can do this with an IP address or with localhost.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def is_allowed_host(header: str, allowed: Collection[str] = ()) -> bool:
    """Return whether a header Host has an IP address, localhost, a name below localhost, or one of `allowed`.

    The names in `allowed` have the form of Django's ALLOWED_HOSTS: `jobs.example.org`, `.example.org` for the
    name with all names below it, and `*` for any. Ports are not compared.

        is_allowed_host("127.0.0.1:8321")                        # True
        is_allowed_host("jobs.example.org", [".example.org"])    # True
    """
    if "*" in allowed:
        return True
    try:
        name = (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return False
    return _is_local(name) or any(
        name == each.lower() or (each.startswith(".") and f".{name}".endswith(each.lower()))
        for each in allowed
        if name
    )


def is_loopback(address: str) -> bool:
    """Return whether only programs of this machine can reach a server that listens on `address`."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_local(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True
