"""Bugs in the file storage: in the content of a commit, in its replay, and in checkpoints."""
# ruff: noqa: ARG005

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from dibs.storage.file import checkpoint, commits, storage
from dibs.storage.file.commits import Commit, QueueImage
from dibs.storage.file.folder import Folder
from dibs.storage.indexed.index import Index
from tests.kit.mutants.planting import Patch, Plant, breaks, changed


def law(sentence: str, examples: int = 300, survives: str = "") -> Callable[[Plant], Plant]:
    return breaks(sentence, examples, where="file", by_contract=True, survives=survives)


def replayed(patch: Patch, **left_out: Any) -> None:
    """Patch the replay to ignore some parts of a queue image."""
    original = commits._apply_queue
    patch.setattr(commits, "_apply_queue", lambda queue, image: original(queue, replace(image, **left_out)))


def often(patch: Patch) -> None:
    """Patch the storage to make a checkpoint after every few commits. This alone is no bug."""
    patch.setattr(checkpoint, "MIN_COMMIT_BYTES", 1)


@law("leases end exactly at their expiry: a restart is no end")
def a_replay_loses_leases(patch: Patch) -> None:
    replayed(patch, leases=[])


@law("a request_key acts once: also after a restart")
def a_replay_loses_request_keys(patch: Patch) -> None:
    replayed(patch, keys=[])


@law("configure: obeyed by every claim that begins after it returned, also after a restart")
def a_replay_loses_settings(patch: Patch) -> None:
    replayed(patch, settings=None)


@law("events: the log is appended in the same atomic step")
def a_replay_loses_events(patch: Patch) -> None:
    replayed(patch, entries=[])


@law("fences grow: above every earlier one, also after a restart")
def numbers_restart_with_each_process(patch: Patch) -> None:
    original = commits.apply

    def mutant(index: Index, body: bytes) -> None:
        number = index.number
        original(index, body)
        index.number = number

    patch.setattr(commits, "apply", mutant)


@law("accepted jobs are kept")
def a_commit_is_answered_before_it_is_written(patch: Patch) -> None:
    original = storage.FileStorage._write_commit

    def mutant(self: storage.FileStorage, index: Index, step: Any, number: int, **how: Any) -> None:
        if number % 10:
            original(self, index, step, number, **how)

    patch.setattr(storage.FileStorage, "_write_commit", mutant)


@law("accepted jobs are kept: the successor has a payload of its own")
def a_commit_takes_every_payload_from_the_current(patch: Patch) -> None:
    changed(patch, commits, "_find_source", lambda source, *_: commits.OF_CURRENT if source else source)


@law("forget: removes everything of an id")
def a_commit_leaves_out_removed_ids(patch: Patch) -> None:
    original = commits._queue_image

    def mutant(queue: Any, changes: Any) -> QueueImage:
        image = original(queue, changes)
        return replace(image, slots=[one for one in image.slots if one.slot is not None])

    patch.setattr(commits, "_queue_image", mutant)


@law("accepted jobs are kept: by a checkpoint as by the commits it stands for")
def a_checkpoint_leaves_out_successors(patch: Patch) -> None:
    often(patch)
    original = commits._snapshot_queue

    def mutant(index: Index, queue: Any) -> Any:
        for body in original(index, queue):
            commit = msgspec.msgpack.decode(body, type=Commit)
            [image] = commit.queues
            slots = [
                one if one.slot is None else replace(one, slot=replace(one.slot, successor=None))
                for one in image.slots
            ]
            yield msgspec.msgpack.encode(replace(commit, queues=[replace(image, slots=slots)]))

    patch.setattr(commits, "_snapshot_queue", mutant)


@law("offsets only grow: a reader behind the start of the log gets fell_off", examples=1000)
def a_checkpoint_forgets_how_far_the_log_was_trimmed(patch: Patch) -> None:
    often(patch)
    original = commits._apply_queue
    patch.setattr(commits, "_apply_queue", lambda queue, image: original(queue, replace(image, trimmed=0)))


@law(
    "durability: fsync=True survives power loss",
    examples=20,
    survives="one call after the other never meets a power loss; L3 does",
)
def a_commit_is_not_synced(patch: Patch) -> None:
    original = Folder.write
    patch.setattr(
        Folder, "write", lambda self, name, chunks, *, fsync: original(self, name, chunks, fsync=False)
    )
