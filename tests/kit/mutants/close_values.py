"""Storages that cheat: each cuts, folds, rounds or ignores values that plain values do not tell apart.

The fixed histories and random examples with plain values do not find them; sequential/close_values.py does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from dibs.model import transitions
from dibs.model.job import Job, JobData, NewJob, Slot
from dibs.model.requests import Complete
from dibs.storage.indexed import by_id, claiming
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.orders import SortedIds
from dibs.storage.indexed.queue_index import QueueIndex
from tests.kit.mutants.planting import Patch, breaks, changed

T = TypeVar("T")
Fold = Callable[[str], str]
#: The walkthrough finds each of these bugs, so that no random example is needed.
FEW = 1

IDS = "an id is 1 to 512 bytes, and two ids differ if one byte does"
KEYS = "a request_key repeats only itself"
QUEUES = "a queue has a name, and two names are two queues"
TIMES = "a time is whole ms up to the end of the year 9998"
DURATIONS = "a duration is up to 100,000 days"
COUNTS = "counts go on, however high they are"
BATCHES = "a batch has one result for each item"
BYTES = "a payload, a result and a memo are opaque bytes, up to 1 MiB"


class FoldedDict(dict[str, T]):
    """A mapping that takes two keys for one if `fold` makes them equal. It keeps the first spelling."""

    def __init__(self, fold: Fold) -> None:
        super().__init__()
        self._fold = fold
        self._spelled: dict[str, str] = {}

    def _key(self, key: str) -> str:
        return self._spelled.get(self._fold(key), key)

    def __setitem__(self, key: str, value: T) -> None:
        self._spelled.setdefault(self._fold(key), key)
        super().__setitem__(self._key(key), value)

    def __getitem__(self, key: str) -> T:
        return super().__getitem__(self._key(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._key(str(key)))

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(self._key(key), default)

    def pop(self, key: str, *default: Any) -> Any:
        value = super().pop(self._key(key), *default)
        self._spelled.pop(self._fold(key), None)
        return value

    def __delitem__(self, key: str) -> None:
        self.pop(key)


def cut(size: int) -> Fold:
    return lambda text: text.encode()[:size].decode(errors="ignore")


FOLDS: dict[str, Fold] = {
    **{f"are_cut_to_{size}_bytes": cut(size) for size in (63, 64, 127)},
    "ignore_case": str.lower,
    "have_one_unicode_form": lambda text: unicodedata.normalize("NFC", text),
    "have_one_compatible_form": lambda text: unicodedata.normalize("NFKC", text),
    "lose_trailing_blanks": lambda text: text.rstrip(" ") or text,
    "lose_all_outer_blanks": lambda text: text.strip() or text,
    "are_numbers_if_they_look_so": lambda text: text.lstrip("0+") or text,
}


LONGER: dict[str, Fold] = {"are_cut_to_255_bytes": cut(255)}


def fold_attribute(owner: type, name: str, fold: Fold) -> Callable[[Patch], None]:
    """Return a bug that folds the keys of a mapping of each object of a class."""

    def plant(patch: Patch) -> None:
        original = owner.__init__  # type: ignore[misc]

        def mutant(self: Any, *args: Any) -> None:
            original(self, *args)
            setattr(self, name, FoldedDict(fold))
            if name == "slots":
                self.listing = SortedIds(self.slots)
                self._init_derived_data()

        patch.setattr(owner, "__init__", mutant)

    return plant


def add_folds(kind: str, law: str, owner: type, attribute: str, folds: dict[str, Fold]) -> None:
    for name, fold in folds.items():
        plant = fold_attribute(owner, attribute, fold)
        plant.__name__ = f"{kind}_{name}"
        breaks(law, FEW, by_contract=True)(plant)


add_folds("ids", IDS, QueueIndex, "slots", {**FOLDS, **LONGER, "are_cut_to_511_bytes": cut(511)})
add_folds("request_keys", KEYS, QueueIndex, "keys", FOLDS)
add_folds("queues", QUEUES, Index, "queues", {**FOLDS, **LONGER})


# -- times, counts -------------------------------------------------------------------------------------


@breaks(TIMES, FEW, by_contract=True)
def a_time_after_2038_comes_early(patch: Patch) -> None:
    changed(patch, transitions, "resolve_run_at", lambda at, *_: min(at, 2**31 * 1000 - 1))


@breaks(TIMES, FEW, by_contract=True)
def a_time_is_kept_in_32_bits_of_seconds(patch: Patch) -> None:
    changed(patch, transitions, "resolve_run_at", lambda at, *_: at % (2**32 * 1000))


@breaks(TIMES, FEW, by_contract=True)
def the_latest_time_is_a_ms_earlier(patch: Patch) -> None:
    changed(patch, transitions, "resolve_run_at", lambda at, *_: min(at, 253_370_764_799_998))


@breaks(DURATIONS, FEW, by_contract=True)
def a_delay_has_31_bits(patch: Patch) -> None:
    def mutant(new: NewJob, now: int) -> int:
        return new.run_at if new.run_at is not None else now + min(new.delay or 0, 2**31 - 1)

    patch.setattr(transitions, "resolve_run_at", mutant)


@breaks(DURATIONS, FEW, by_contract=True)
def an_outcome_is_kept_for_31_bits_of_ms(patch: Patch) -> None:
    def change(expiry: int | None, kind: str, now: int, *_: Any) -> int | None:
        return None if expiry is None else min(expiry, now + 2**31 - 1)

    changed(patch, transitions, "outcome_expiry", change)


def wrap_counts(after: Slot, most: int) -> Slot:
    """Return the slot with the counts of its waiting job wrapped around beyond `most`."""
    job = after.current
    if job is None:
        return after
    counts = {name: getattr(job, name) % (most + 1) for name in ("attempts", "retries", "stalls", "timeouts")}
    return replace(after, current=replace(job, **counts))


@breaks(COUNTS, FEW, by_contract=True)
def counts_have_one_byte(patch: Patch) -> None:
    changed(patch, transitions, "retry", lambda after, *_: wrap_counts(after, 255))


@breaks(COUNTS, FEW, by_contract=True)
def counts_have_two_bytes(patch: Patch) -> None:
    changed(patch, transitions, "retry", lambda after, *_: wrap_counts(after, 65_535))


@breaks(COUNTS, FEW, by_contract=True)
def counts_have_30_bits(patch: Patch) -> None:
    changed(patch, transitions, "retry", lambda after, *_: wrap_counts(after, 2**30 - 1))


@breaks(COUNTS, FEW, by_contract=True)
def attempts_stop_at_1000(patch: Patch) -> None:
    changed(patch, transitions, "claim", lambda job, *_: replace(job, attempts=min(job.attempts, 1_000)))


# -- batches and sizes ---------------------------------------------------------------------------------


def stop_after(most: int, owner: Any, name: str, rest: Any) -> Callable[[Patch], None]:
    """Return a bug: a verb ignores the items of its batch after `most`, and answers `rest` for them."""

    def plant(patch: Patch) -> None:
        original = getattr(owner, name)

        def mutant(index: Index, queue: str, items: Sequence[Any], *args: Any) -> list[Any]:
            answers = list(original(index, queue, items[:most], *args))
            return [*answers, *[rest] * (len(items) - len(answers))]

        patch.setattr(owner, name, mutant)

    return plant


for most in (100, 1_000):
    for verb, rest in (("cancel", "not_found"), ("retry_failed", "not_found"), ("forget", False)):
        late = stop_after(most, by_id, verb, rest)
        late.__name__ = f"a_{verb}_stops_after_{most}_ids"
        breaks(BATCHES, FEW, by_contract=True)(late)


@breaks(BATCHES, FEW, by_contract=True)
def a_claim_takes_at_most_1000_jobs(patch: Patch) -> None:
    original = claiming.claim
    patch.setattr(
        claiming, "claim", lambda index, queue, lease, limit: original(index, queue, lease, min(limit, 1_000))
    )


@breaks(BATCHES, FEW, by_contract=True)
def a_reap_takes_at_most_100_jobs(patch: Patch) -> None:
    original = claiming.reap
    patch.setattr(claiming, "reap", lambda index, queue, limit: original(index, queue, min(limit, 100)))


def store_payloads(change: Callable[[bytes], bytes]) -> Callable[[Patch], None]:
    """Return a bug that changes each payload when a claim hands it out."""

    def plant(patch: Patch) -> None:
        def hand_out(job: Job, *_: Any) -> Job:
            data: JobData = job.data
            return replace(job, data=replace(data, payload=change(data.payload)))

        changed(patch, transitions, "claim", hand_out)

    return plant


for text, size in (("64_kib", 64 * 1024), ("1_mib_less_two", 1024 * 1024 - 2)):
    short = store_payloads(lambda payload, size=size: payload[:size])  # type: ignore[misc]
    short.__name__ = f"a_payload_is_cut_to_{text}"
    breaks(BYTES, FEW, by_contract=True)(short)


@breaks(BYTES, FEW, by_contract=True)
def an_empty_result_is_none(patch: Patch) -> None:
    original = transitions.make_outcome

    def mutant(job: Job, action: Any, *rest: Any) -> Any:
        empty = isinstance(action, Complete) and action.result == b""
        return original(job, replace(action, result=None) if empty else action, *rest)

    patch.setattr(transitions, "make_outcome", mutant)


@breaks(BYTES, FEW, by_contract=True)
def an_error_of_exactly_the_limit_loses_a_letter(patch: Patch) -> None:
    def change(outcome: Any, *_: Any) -> Any:
        error = outcome.error
        if error is None or len((error.type + error.message + error.traceback).encode()) < 16 * 1024:
            return outcome
        return replace(outcome, error=replace(error, message=error.message[:-1]))

    changed(patch, transitions, "make_outcome", change)
