"""Optional method of a storage: a token from the answer of an enqueue, for waits for the end of its job."""

from __future__ import annotations

from typing import Protocol, cast

from dibs.storage.protocol import Storage


class EndTokens(Protocol):
    """The optional method of a storage whose tokens of waits for ids follow from revisions."""

    def end_token(self, revision: int) -> str:
        """Return the token with which a wait for ids reports each end after the enqueue `revision`.

        A wait with the token of a smaller revision reports these ends, too.
        """
        ...


def with_end_tokens(storage: Storage) -> EndTokens | None:
    """Return the storage if revisions give it the tokens of waits; None otherwise."""
    # Looked up in the class, as the methods of dibs.storage.direct_enqueue.
    return cast("EndTokens", storage) if hasattr(type(storage), "end_token") else None
