"""Rates on the command line: "5/s", "10/1m30s", "5/s burst 10"."""

from __future__ import annotations

from dibs.cli.errors import UsageError
from dibs.client.options import queue_settings
from dibs.client.options.queue_settings import Rate
from dibs.errors import Refused


def parse_rate(option: str, text: str) -> Rate:
    """Return the rate of a text such as "5/s burst 10". Raises UsageError naming the option."""
    try:
        return queue_settings.parse_rate(option, text)
    except Refused as refused:
        raise UsageError(f"{refused}; none is no limit") from None
