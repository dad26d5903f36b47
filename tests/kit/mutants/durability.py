"""Bugs that only a restart, a checkpoint or an old reader of the log shows.

The checkpoints have their real limits: 4 MiB or 4,096 commits. The other bugs in checkpoints (commit_log.py)
are planted together with a limit of 1 byte.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from dibs.storage.file import checkpoint, commits, storage
from dibs.storage.file.commits import Commit, QueueImage
from dibs.storage.file.directory import commit_name
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.planting import Patch, breaks


def imaged(patch: Patch, change: Any) -> None:
    """Patch the frames of a checkpoint, so that each queue image passes through `change(image)`."""
    original = commits._snapshot_queue

    def mutant(index: Index, queue: Any) -> Any:
        for body in original(index, queue):
            commit = msgspec.msgpack.decode(body, type=Commit)
            yield msgspec.msgpack.encode(replace(commit, queues=[change(one) for one in commit.queues]))

    patch.setattr(commits, "_snapshot_queue", mutant)


@breaks("events: a reader behind trimmed events gets fell_off, also after a restart", where="file")
def a_commit_leaves_out_a_trim(patch: Patch) -> None:
    original = commits._queue_image

    def mutant(queue: QueueIndex, changes: Any) -> QueueImage:
        return replace(original(queue, changes), trimmed=0)

    patch.setattr(commits, "_queue_image", mutant)


@breaks("events: a trim is kept by a commit, also as the only change of its step", where="file")
def a_trim_is_no_change_of_the_queue(patch: Patch) -> None:
    def mutant(self: QueueIndex, through: int) -> int:
        return len(self.log.trim(through))

    patch.setattr(QueueIndex, "put_trim", mutant)


@breaks("accepted jobs are kept: by a checkpoint at its real limit", where="file")
def a_real_checkpoint_drops_an_id(patch: Patch) -> None:
    imaged(patch, lambda image: replace(image, slots=image.slots[1:]))


@breaks("the log: a checkpoint at its real limit keeps it", where="file")
def a_real_checkpoint_drops_the_log(patch: Patch) -> None:
    imaged(patch, lambda image: replace(image, entries=[]))


@breaks("a request_key acts once: also after a checkpoint at its real limit", where="file")
def a_real_checkpoint_drops_request_keys(patch: Patch) -> None:
    imaged(patch, lambda image: replace(image, keys=[]))


@breaks("accepted jobs are kept: a checkpoint removes no later commit", where="file")
def a_checkpoint_removes_one_commit_too_many(patch: Patch) -> None:
    original = checkpoint.write

    def mutant(directory: Any, index: Index, number: int) -> int:
        size = original(directory, index, number)
        # The number of the checkpoint is one too high: the next commit is then skipped at the next opening.
        directory.write("checkpoint", checkpoint._encode_frames(index, number + 1), fsync=False)
        return size

    patch.setattr(checkpoint, "write", mutant)


@breaks("accepted jobs are kept: after the storage was closed", where="file")
def a_close_forgets_the_newest_commit(patch: Patch) -> None:
    original = storage.FileStorage.close

    async def mutant(self: storage.FileStorage) -> None:
        numbers = self._directory.commit_numbers() if self._directory.is_open else []
        if len(numbers) > 4:
            self._directory.remove(commit_name(numbers[-1]))
        await original(self)

    patch.setattr(storage.FileStorage, "close", mutant)
