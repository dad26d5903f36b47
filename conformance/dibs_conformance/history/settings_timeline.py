"""The settings that a queue may have had at some time, from its recorded configures."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from math import inf

from dibs.model.requests import Settings
from dibs_conformance.steps import RecordedStep
from dibs_conformance.verbs.configure import setting_texts

#: The settings of a queue that was never configured, as JSON texts.
DEFAULTS = setting_texts(Settings())


class SettingsTimeline:
    """All configures of one queue."""

    def __init__(self, steps: Iterable[RecordedStep]) -> None:
        self.steps = [step for step in steps if step.status != "refused"]

    @cached_property
    def _by_setting(self) -> dict[str, SettingTimeline]:
        return {name: SettingTimeline(name, self.steps) for name in DEFAULTS}

    def possible(self, name: str, began: int, ended: int) -> set[str]:
        """Return the values, as JSON texts, that a setting may have had at some time of an interval."""
        return self._by_setting[name].possible(began, ended)

    def certain(self, name: str, began: int, ended: int) -> str | None:
        """Return the value that a setting certainly had during a whole interval, or None."""
        values = self.possible(name, began, ended)
        return values.pop() if len(values) == 1 else None

    def values(self, name: str) -> set[str]:
        """Return all values that were ever set."""
        return {value for _, _, value in self._by_setting[name].writes}


class SettingTimeline:
    """The writes of one setting, in the order of their answers."""

    def __init__(self, name: str, steps: Iterable[RecordedStep]) -> None:
        self._default = DEFAULTS[name]
        self.writes = sorted(
            (inf if step.ended is None else step.ended, step.began, patch[name])
            for step in steps
            if name in (patch := patch_of(step))
        )
        self._ends = [end for end, _, _ in self.writes]
        #: Element i is the latest time at which one of the first i + 1 writes was sent.
        self._latest_sent = [*accumulate((began for _, began, _ in self.writes), max)]
        #: Element i is the earliest time at which one of the writes from i on was sent.
        self._earliest_sent = [*accumulate((began for _, began, _ in reversed(self.writes)), min)][::-1]

    def possible(self, began: int, ended: int) -> set[str]:
        """Return the values that the setting may have had at some time from `began` to `ended`.

        A write no longer counts if another one was sent after its answer, and answered before `began`.
        """
        answered = bisect_left(self._ends, began)
        found = set() if answered else {self._default}
        first = bisect_left(self._ends, self._latest_sent[answered - 1]) if answered else 0
        for index in range(first, len(self.writes)):
            if self._earliest_sent[index] > ended:
                break
            if self.writes[index][1] <= ended:
                found.add(self.writes[index][2])
        return found


def patch_of(step: RecordedStep) -> dict[str, str]:
    """Return the patch of a configure. A history may have only `paused` and `max_active`."""
    if step.patch is not None:
        return step.patch
    fields = {"paused": step.paused, "max_active": step.max_active}
    return {name: str(value).lower() for name, value in fields.items() if value is not None}
