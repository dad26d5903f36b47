"""The operation `compact`: the rare work of a storage, for example a checkpoint (dibs.storage.abilities)."""

from __future__ import annotations

from dibs.storage.abilities import Compaction, ability
from dibs.storage.protocol import Storage
from dibs_conformance.verbs.verb import Verb, read_scenes


async def compact(storage: Storage, _: str, *, now: int) -> None:
    """Call `compact` of the storage, if it has this method."""
    del now
    if (compaction := ability(storage, Compaction)) is not None:
        await compaction.compact()


VERB = Verb(
    name="compact",
    weight=1,
    # The search for an order leaves it out: it changes nothing that a call can see.
    arguments=lambda _, __, ___: {},
    call=compact,
    scenes=read_scenes("compact: runs with a successor / compact"),
)
