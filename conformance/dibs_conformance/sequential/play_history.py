"""Runs one fixed history at a new location, in lockstep with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dibs_conformance.lockstep.interruptions import Interruptions
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.sequential.state_machine import START
from dibs_conformance.target import OpenedStorage
from dibs_conformance.verbs import Lockstep


def play_history(
    session: ExampleSession,
    play: Callable[[Lockstep], None],
    *,
    handles: int = 1,
    compare_each: bool = True,
    interruptions: Interruptions | None = None,
) -> None:
    """Run one history at a new location, with several handles if the storage allows them."""
    session.examples += 1
    session.checker.begin()
    location = session.locations.new()
    handles = handles if session.handles else 1
    opened = OpenedStorage(session.locations, session.runner, location, handles=handles)
    lockstep = Lockstep(
        opened,
        session.runner,
        session.checker,
        now=START,
        compare_each=compare_each,
        interruptions=interruptions,
    )
    try:
        play(lockstep)
    except BaseException:
        # An error from `close` would hide the error of the history.
        with suppress(Exception):
            lockstep.opened.close()
        raise
    else:
        lockstep.opened.close()
    finally:
        session.calls += lockstep.oracle.numbers.call
