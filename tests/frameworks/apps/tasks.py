"""Tasks that the programs and servers of these tests enqueue."""

from __future__ import annotations


def double(n: int) -> int:
    return n * 2
