"""The decisions of a flow: which nodes to read, to enqueue and to skip, and how the flow ends.

`FlowState` is pure: it knows the plan and the notes, and is called with the ends that were read. Each waiting
node *watches* one parent, the last one in its list that has not ended. Only watched nodes are read, so all
evaluations of a flow together take O(n) time and reads for n nodes and edges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dibs.flow.plan import (
    CANCELLED,
    FAILED,
    LOST,
    SKIPPED,
    WAITING,
    Plan,
    is_completed,
    is_ended,
    is_open,
    open_note,
)

#: The most nodes of one list of parents that are read at once.
MAX_CHUNK: Final = 1000
#: The factor from one chunk to the next one, after a chunk in which all nodes had ended.
_GROWTH: Final = 16


class FlowState:
    """The nodes of a flow and their notes."""

    def __init__(self, plan: Plan, notes: list[int]) -> None:
        self.plan = plan
        #: One note per node.
        self.notes = notes
        #: The number of notes that changed since the flow job got them.
        self.unsaved = 0
        #: True after a change that must be stored: a node failed or was skipped.
        self.must_save = False
        #: True if all nodes have ended or are skipped.
        self.is_over = False
        self._counts = Counter(map(_kind_of, notes))
        self._end = len(plan.nodes)
        required = [node.required() for node in plan.nodes]
        #: The parents of each node. The last list is that of the end of the flow, which waits for all nodes.
        self._parents: list[Sequence[int]] = [
            (*stops, *node.after_any) for node, stops in zip(plan.nodes, required, strict=True)
        ]
        self._parents.append(range(self._end))
        #: The nodes that are skipped if this node does not complete.
        self._dependents: list[list[int]] = [[] for _ in plan.nodes]
        for number, stops in enumerate(required):
            for parent in stops:
                self._dependents[parent].append(number)
        self._tolerated = {parent for node in plan.nodes for parent in node.after_any}
        #: For each list of parents, the index of the watched one: all parents behind it have ended.
        self._position = [len(parents) - 1 for parents in self._parents]
        #: The nodes that watch a node.
        self._watchers: dict[int, list[int]] = {}
        self._watched_open: set[int] = set()
        self._ready: list[int] = []
        #: The watchers that reached another open parent in this evaluation, with the size of the next chunk.
        self._advanced: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        for watcher in range(self._end + 1):
            if watcher == self._end or notes[watcher] == WAITING:
                self._advance(watcher)

    # -- reads ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._advanced.clear()
        self._sizes.clear()

    def watched(self) -> list[int]:
        """Return the numbers of the watched nodes that are open, with the next ones after an end."""
        return list(dict.fromkeys((*self._watched_open, *self.next_reads())))

    def next_reads(self) -> list[int]:
        """Return the numbers of the nodes to read next: a chunk for each watcher that went on."""
        wanted: dict[int, None] = {}
        for watcher, size in self._advanced.items():
            parents, at = self._parents[watcher], self._position[watcher]
            for index in range(at, max(-1, at - size), -1):
                if is_open(self.notes[parents[index]]):
                    wanted[parents[index]] = None
        self._advanced.clear()
        return list(wanted)

    def open_numbers(self) -> list[int]:
        return [number for number, note in enumerate(self.notes) if is_open(note)]

    # -- changes -------------------------------------------------------------------------------------

    def take_ready(self) -> list[int]:
        """Return the numbers of the nodes that can be enqueued now, and forget them."""
        ready, self._ready = [one for one in self._ready if self.notes[one] == WAITING], []
        return ready

    def enqueued(self, number: int, revision: int) -> None:
        """Note that a node was enqueued with this revision, or runs under another one now."""
        self._note(number, open_note(revision))
        if number in self._watchers:
            self._watched_open.add(number)

    def end(self, number: int, note: int) -> None:
        """Note the end of a node, and skip the nodes that required its completion."""
        ends = [(number, note)]
        while ends:
            number, note = ends.pop()
            if is_ended(self.notes[number]):
                continue
            self._note(number, note)
            if not is_completed(note):
                self.must_save = True
                ends += [(one, SKIPPED) for one in self._dependents[number]]
            self._watched_open.discard(number)
            for watcher in self._watchers.pop(number, ()):
                if watcher == self._end or self.notes[watcher] == WAITING:
                    self._advance(watcher)

    def saved(self) -> None:
        """Note that the flow job has the current notes."""
        self.unsaved, self.must_save = 0, False

    def _note(self, number: int, note: int) -> None:
        self._counts[_kind_of(self.notes[number])] -= 1
        self._counts[_kind_of(note)] += 1
        self.notes[number] = note
        self.unsaved += 1

    def _advance(self, watcher: int) -> None:
        """Watch the next parent of a node that has not ended; without such a parent, the node is ready."""
        parents, index = self._parents[watcher], self._position[watcher]
        while index >= 0 and is_ended(self.notes[parents[index]]):
            index -= 1
        self._position[watcher] = index
        if index >= 0:
            self._watch(watcher, parents[index])
        elif watcher == self._end:
            self.is_over = True
        else:
            self._ready.append(watcher)

    def _watch(self, watcher: int, parent: int) -> None:
        self._watchers.setdefault(parent, []).append(watcher)
        if is_open(self.notes[parent]):
            self._watched_open.add(parent)
            size = min(MAX_CHUNK, self._sizes.get(watcher, 1) * _GROWTH)
            self._sizes[watcher] = self._advanced[watcher] = size

    # -- the end -------------------------------------------------------------------------------------

    def causes_of_failure(self) -> list[int]:
        """Return the numbers of the nodes that make the flow fail; an empty list if it completes.

        A node that did not complete fails the flow, unless nodes come after it and all of them were added
        with on_failure="ignore". The node whose result the flow returns always fails it. A skipped node is
        no cause: the node that did not complete before it is one.
        """
        return [
            number
            for number, note in enumerate(self.notes)
            if note in (FAILED, CANCELLED, LOST)
            and (number == self.plan.returns or not self._is_tolerated(number))
        ]

    def _is_tolerated(self, number: int) -> bool:
        return number in self._tolerated and not self._dependents[number]

    def counts(self) -> dict[str, int]:
        """Return the progress of the flow: the numbers of its nodes by state. `open` ones have not ended."""
        kinds = ("completed", "failed", "skipped", "open")
        return {"total": len(self.notes), **{kind: self._counts[kind] for kind in kinds}}


def _kind_of(note: int) -> str:
    """Return the name under which the progress counts a node with this note."""
    if is_completed(note):
        return "completed"
    if note == SKIPPED:
        return "skipped"
    return "failed" if note in (FAILED, CANCELLED, LOST) else "open"
