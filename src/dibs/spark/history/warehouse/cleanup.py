"""The removal of old generations, and of files that no generation names."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Final

from dibs.spark.history.warehouse.manifest import (
    DATA,
    MANIFESTS,
    Manifest,
    decode_state,
    manifest_number,
    manifest_path,
)
from dibs.spark.history.warehouse.store import Store

#: Seconds for which a replaced generation is kept, so that its readers can finish.
KEEP_SECONDS: Final = 3600
#: Seconds after which a file that no generation names is an orphan: an attempt left it that was killed.
ORPHAN_SECONDS: Final = 24 * 3600
#: Generations between two searches for orphans. A search lists all files.
SEARCH_EVERY: Final = 100


def remove_old(store: Store, current: Manifest) -> None:
    """Delete the generations that were replaced long ago, with the files that only they name.

    A file that a generation no longer names never comes back. So the files to delete are those of an old
    manifest that the next manifest does not name. The manifest is deleted first: a reader never finds a
    manifest without its files, and a kill in between leaves orphans.
    """
    now = time.time()
    listed = store.list_files(MANIFESTS)
    numbers = sorted(number for path in listed if (number := manifest_number(path)) is not None)
    for old, following in pairwise(numbers):
        # A generation is replaced when the next one is written.
        if now - listed[manifest_path(following)].changed_at < KEEP_SECONDS:
            break
        before, after = _read(store, old), _read(store, following)
        store.delete([manifest_path(old)])
        store.delete(sorted(before.paths() - after.paths()))
    if current.generation % SEARCH_EVERY == 0:
        remove_orphans(store, now)


def remove_orphans(store: Store, now: float) -> None:
    """Delete the old files that no kept generation names.

    A file of an attempt that still runs is younger. An attempt that sleeps for a day cannot commit any
    more, because this function runs only after the commit of another one.
    """
    named: set[str] = set()
    for path in store.list_files(MANIFESTS):
        if (number := manifest_number(path)) is not None:
            named |= _read(store, number).paths()
    files = store.list_files(DATA)
    orphans = [path for path, file in files.items() if now - file.changed_at > ORPHAN_SECONDS]
    store.delete(sorted({*orphans} - named))


def _read(store: Store, number: int) -> Manifest:
    path = manifest_path(number)
    return decode_state(store.read(path), store.full_path(path), Manifest)
