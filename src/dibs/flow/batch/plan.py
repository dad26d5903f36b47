"""The payload, the attributes and the ids of a batch job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from dibs.flow.plan import DEFAULT_KEEP, Plan, base36

#: The longest id of a batch, in bytes. The ids of its members are longer, and have at most 512 bytes.
MAX_BATCH_ID: Final = 440
#: Ms without a new segment after which an open batch is closed, by default: 1 hour.
DEFAULT_OPEN_FOR: Final = 3_600_000
#: The attribute of a batch job and of its callbacks: the id of the batch.
BATCH_ATTRIBUTE: Final = "dibs.batch"
#: The attribute of a batch to which only its own members add further members.
CLOSED_ATTRIBUTE: Final = "dibs.closed"
#: The attribute of a batch that gets no further members: all members have ended, or it is cancelled.
SEALED_ATTRIBUTE: Final = "dibs.sealed"
#: The attribute of a batch with a member that did not complete.
FAILED_ATTRIBUTE: Final = "dibs.failed"
#: The attribute of a batch that was closed because no producer added members for `open_for`.
LOST_ATTRIBUTE: Final = "dibs.producer_lost"
#: The attribute of a callback: the summary of the batch.
SUMMARY_ATTRIBUTE: Final = "dibs.summary"
#: The prefix of the attributes in which producers reserve segments, one attribute per producer.
PRODUCER_PREFIX: Final = "dibs.p."

#: The names of the callbacks.
ON_SUCCESS: Final = "on_success"
ON_FINISH: Final = "on_finish"
ON_FIRST_FAILURE: Final = "on_first_failure"


class BatchPlan(Struct, omit_defaults=True, kw_only=True, tag="batch", tag_field="kind"):
    """The payload of a batch job."""

    #: The callbacks by name. Each is a plan with one node.
    callbacks: dict[str, Plan] = {}
    #: Ms for which the outcomes of members are kept at least; None for ever.
    keep: int | None = DEFAULT_KEEP
    #: Ms without a new segment after which an open batch is closed.
    open_for: int = DEFAULT_OPEN_FOR


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(BatchPlan)


def encode_batch_plan(plan: BatchPlan) -> bytes:
    """Return the plan as the payload of a batch job."""
    return _encoder.encode(plan)


def decode_batch_plan(raw: bytes) -> BatchPlan:
    """Return a stored plan. Raises ValueError."""
    return _decoder.decode(raw)


def is_batch(attributes: Mapping[str, bytes]) -> bool:
    """Return whether a job of the queue `dibs.flows` is a batch."""
    return BATCH_ATTRIBUTE in attributes


def is_set(attributes: Mapping[str, bytes], name: str) -> bool:
    """Return whether an attribute is true."""
    return attributes.get(name) == b"true"


def is_open_for(attributes: Mapping[str, bytes], *, member: bool) -> bool:
    """Return whether members can be added: by a running member of the batch, or by another program."""
    return not is_set(attributes, SEALED_ATTRIBUTE) and (member or not is_set(attributes, CLOSED_ATTRIBUTE))


class Reserved(NamedTuple):
    """The segments that one producer has reserved. Their numbers begin at 0."""

    segments: int = 0
    #: The members of these segments.
    members: int = 0


_reserved_decoder: Final = msgspec.json.Decoder(Reserved)


def find_reservations(attributes: Mapping[str, bytes]) -> dict[str, Reserved]:
    """Return the reservations in the attributes of a batch job, by producer in a fixed order."""
    return {
        name.removeprefix(PRODUCER_PREFIX): _reserved_decoder.decode(attributes[name])
        for name in sorted(attributes)
        if name.startswith(PRODUCER_PREFIX)
    }


def segment_id(batch_id: str, stamp: int, producer: str, number: int) -> str:
    """Return the id of a segment. `stamp` keeps two batches with the same id apart."""
    return f"{batch_id}/{base36(stamp)}/{producer}.{number}"


def callback_id(batch_id: str, stamp: int, name: str) -> str:
    """Return the job id of a callback."""
    return f"{batch_id}/{base36(stamp)}/{name}"


def batch_of_segment(segment: str) -> str | None:
    """Return the id of the batch of a segment; None for the id of a flow that is no segment."""
    id, *rest = segment.rsplit("/", 2)
    return id if len(rest) == 2 and "." in rest[1] else None
