"""`Flow`: add jobs as nodes, with other nodes as arguments or parents, and enqueue them all as one job.
`Chain`: calls of tasks, each with the result of the call before it as its first argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, overload

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dibs.client.calls.bound_job import Bound, KeptCall
from dibs.client.options.arguments import Seconds, check_list, duration_ms, new_id
from dibs.client.options.job_settings import (
    JobSettings,
    Retention,
    build_request,
    check_setting_names,
)
from dibs.client.options.serde import JSON
from dibs.client.task import TaskEnqueuer
from dibs.client.ticket import Ticket
from dibs.errors import Refused
from dibs.flow.arguments import has_node, plan_call, plan_payload
from dibs.flow.context import FlowContext, Node, ResultDecoder
from dibs.flow.plan import (
    MAX_FLOW_ID,
    MAX_NODES,
    Plan,
    PlannedCall,
    PlannedNode,
    encode_plan,
)
from dibs.model.check_jobs import check_request
from dibs.model.check_values import check_text
from dibs.model.limits import LIMITS
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, OnConflict, Reject, Update
from dibs.model.wakeup import FLOWS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from dibs.client.sync.flow import BlockingChain, BlockingFlow

R = TypeVar("R")
#: "stop": the node is skipped if a parent does not complete. "ignore": it runs then, too.
OnFailure = Literal["stop", "ignore"]


class FlowSettings(TypedDict, total=False):
    """Settings of the job of a flow; the units and defaults are those of `enqueue`."""

    delay: Seconds
    """Seconds from the storage's current time until the flow starts. Excludes `run_at`."""
    run_at: datetime
    """The time when the flow starts, with a time zone. Excludes `delay`."""
    priority: int
    """Priority of the job that starts the flow, -1000 to 1000. Nodes have priorities of their own."""
    on_conflict: OnConflict
    """The rule for a flow id that is known already: `Reject(...)`, which never replaces a live flow."""
    request_key: str
    """A key that makes the enqueue idempotent."""
    attributes: Mapping[str, Any]
    """JSON values by name."""
    retention: Retention | Seconds | None
    """Seconds that the outcome of the flow is kept; None is for ever. Default: the queue's retention."""


FLOW_SETTINGS = frozenset(FlowSettings.__annotations__)
#: Prefix of the attributes that flows use themselves.
RESERVED_PREFIX = "dibs."


class Flow:
    """Jobs that wait for each other, returned by `app.flow()`. `enqueue` enqueues them together."""

    def __init__(
        self, context: FlowContext, id: str | None, keep: Seconds | None, settings: FlowSettings
    ) -> None:
        check_setting_names(settings, FLOW_SETTINGS)
        if id is not None:
            check_text("id", id, MAX_FLOW_ID)
        self._context = context
        self._client = context.flows
        self._settings = settings
        self._keep = None if keep is None else keep_ms(keep)
        self._queues: dict[str, int] = {}
        self._nodes: list[PlannedNode] = []
        self._decoders: list[ResultDecoder] = []
        self._returns: int | None = None
        self._has_id = id is not None
        self.id: str = new_id() if id is None else id
        """Id of the flow."""

    def __repr__(self) -> str:
        return f"<Flow {self.id!r} with {len(self._nodes)} nodes>"

    @property
    def sync(self) -> BlockingFlow:
        """This flow with blocking methods, for code without an event loop."""
        from dibs.client.sync.flow import BlockingFlow  # noqa: PLC0415 - async programs never load it

        return BlockingFlow(self)

    @overload
    def add(
        self, job: Bound[R], *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "stop"
    ) -> Node[R]: ...
    @overload
    def add(
        self, job: Flow | BlockingFlow, *, after: Iterable[Node[Any]] = (), on_failure: OnFailure = "stop"
    ) -> Node[Any]: ...
    def add(
        self,
        job: Bound[Any] | Flow | BlockingFlow,
        *,
        after: Iterable[Node[Any]] = (),
        on_failure: OnFailure = "stop",
    ) -> Node[Any]:
        """Add a job, made with `task.bind(...)` or `queue.bind(...)`, or another flow, and return its node.

            small = flow.add(resize.bind("a.png"))
            flow.add(send.bind("ada@example.org", subject=small.output))  # waits for `small`

        A node in the arguments of the call, also inside lists, tuples and dicts, is a parent of the new node,
        and its result arrives in its place. `after` are further parents. `on_failure` says what happens if
        one of them does not complete: "stop" skips the new node, "ignore" runs it. A node whose result is an
        argument must always complete.

        A job with an id of its own is shared: if its id is known already, the flow waits for that job.

        Raises Refused for a job or a node that is not allowed, and for too many nodes.
        """
        if len(self._nodes) >= MAX_NODES:
            raise Refused(
                f"this flow has {MAX_NODES:,} nodes, which is the limit; add flows as nodes, enqueue parts "
                "of it from a handler, or use a batch",
                field="flow",
            )
        if on_failure not in ("stop", "ignore"):
            raise Refused(
                f'on_failure is {on_failure!r:.60}; it must be "stop" or "ignore"', field="on_failure"
            )
        # The blocking form of a flow has the flow itself as its source.
        flow = job if isinstance(job, Flow) else getattr(job, "_source", None)
        node, decode = self._plan_flow(flow) if isinstance(flow, Flow) else self._plan_job(job)
        return self._append(_with_parents(node, self._numbers(after), on_failure), decode)

    def add_next(self, job: Bound[R], previous: Node[Any]) -> Node[R]:
        """Add a call of a task whose first argument is the result of `previous`. Raises Refused.

        Example: `flow.add_next(send.bind(), flow.add(resize.bind("a.png")))`
        """
        _check_bound(job)
        if job.call is not None:
            call = plan_call(job.call, previous, self._number_of)
            node = self._plan_kept(job, job.call, call)
        else:
            request = job.request
            call = plan_payload(
                self._context.client(job.queue).serde, request.job.data.payload, previous.number
            )
            node = replace(
                self._plan_request(job, request), data=msgspec.UNSET, payload=msgspec.UNSET, call=call
            )
        return self._append(node, self._context.decoder_of(job.queue))

    def returns(self, node: Node[Any]) -> None:
        """Make the result of a node the result of the flow; without a call, the result is None.

            flow.returns(flow.add(resize.bind("a.png")))

        The flow fails if this node does not complete. Raises Refused for a node of another flow.
        """
        self._returns = self._number_of(node)

    async def enqueue(self, *, connection: Any = None) -> Ticket[Any]:
        """Enqueue the flow as one job of the queue `dibs.flows`, and return its ticket.

            flow.add(resize.bind("a.png"))
            ticket = await flow.enqueue()

        A worker of an app with flows=True then enqueues the nodes, each after its parents. With a
        `connection` of psycopg, SQLAlchemy or Django the flow is enqueued in its transaction. If the flow id
        is live or has completed, the flow stays as it is, and the ticket is that of the known flow.

        Raises Refused if the flow has no nodes or its plan is too large, OutcomeUnknown if the reply of the
        storage was lost, StorageError.
        """
        opened = await self._client.storage_handle.ensure_open()
        request = self.build_request(opened.limits.payload)
        if connection is not None:
            answer = await self._client.enqueue_in_transaction(request, connection)
        else:
            async with self._client.slot() as (slot, expires):
                answer = await self._client.enqueue(slot, request, expires)
        return Ticket(self._client, self.id, answer.revision, self._decoder(), answer)

    # -- the plan ------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the plan of the flow. Raises Refused for a flow without nodes."""
        if not self._nodes:
            raise Refused("this flow has no nodes; add jobs with flow.add(task.bind(...))", field="flow")
        serdes = {queue: self._context.client(queue).serde for queue in self._queues}
        return Plan(
            queues=tuple(self._queues),
            nodes=tuple(self._nodes),
            serdes={queue: serde.name for queue, serde in serdes.items() if serde is not JSON},
            returns=self._returns,
            keep=self._keep,
        )

    def build_request(self, limit: int) -> EnqueueRequest:
        """Return the request for the flow job, whose plan may have `limit` bytes. Raises Refused."""
        payload = encode_plan(self.plan(), limit)
        settings = cast("JobSettings", {"on_conflict": Reject(), **self._settings, "id": self.id})
        if not isinstance(settings["on_conflict"], Reject):
            raise Refused(
                "on_conflict of a flow must be Reject(...), because a flow that runs is never replaced; "
                "cancel it first, or choose another id",
                field="on_conflict",
            )
        request = build_request(payload, settings)
        data = request.job.data
        check_attributes(data.attributes)
        retention = data.retention or Retention().to_model()
        kept = replace(retention, keep_payload=("completed", "failed", "cancelled"))
        request = replace(request, job=replace(request.job, data=replace(data, retention=kept)))
        check_request(request)
        return request

    def _decoder(self) -> ResultDecoder:
        return JSON.decode if self._returns is None else self._decoders[self._returns]

    def _append(self, node: PlannedNode, decode: ResultDecoder) -> Node[Any]:
        self._nodes.append(node)
        self._decoders.append(decode)
        return Node(self, len(self._nodes) - 1, list(self._queues)[node.queue], decode)

    def _number_of(self, node: Node[Any]) -> int:
        if not isinstance(node, Node):
            raise Refused(f"{node!r:.60} is not a node; pass nodes that flow.add returned", field="after")
        if not node.belongs_to(self):
            raise Refused(f"{node!r} belongs to another flow; add its job to this flow", field="after")
        return node.number

    def _numbers(self, after: Iterable[Node[Any]]) -> tuple[int, ...]:
        if isinstance(after, Node):
            raise Refused("after is one node; pass a list of nodes", field="after")
        check_list("after", after)
        return tuple(dict.fromkeys(map(self._number_of, after)))

    def _queue_index(self, queue: str) -> int:
        return self._queues.setdefault(queue, len(self._queues))

    def _plan_job(self, job: object) -> tuple[PlannedNode, ResultDecoder]:
        job = _check_bound(job)
        decode = self._context.decoder_of(job.queue)
        kept = job.call
        if kept is not None and has_node((kept.args, dict(kept.kwargs))):
            return self._plan_kept(job, kept, plan_call(kept, None, self._number_of)), decode
        return self._plan_request(job, job.request), decode

    def _plan_request(self, job: Bound[Any], request: EnqueueRequest) -> PlannedNode:
        """Return the node of an encoded job. Raises Refused for a setting that a node cannot have."""
        _check_rule(request)
        new = request.job
        check_request(request)
        check_attributes(new.data.attributes)
        node = PlannedNode(
            queue=self._queue_index(job.queue),
            id=new.id if job.has_id else "",
            attributes={name: Raw(value) for name, value in new.data.attributes.items()},
            priority=new.data.priority,
            overrides=new.data.overrides,
            retention=new.data.retention,
            key=new.data.key,
            run_at=new.run_at,
            delay=new.delay,
        )
        if self._context.client(job.queue).serde is JSON:
            node.data = Raw(new.data.payload)
        else:
            node.payload = new.data.payload
        return node

    def _plan_kept(self, job: Bound[Any], kept: KeptCall, call: PlannedCall) -> PlannedNode:
        """Return the node of a call whose arguments contain nodes."""
        settings = kept.settings
        if settings.get("connection") is not None:
            return self._plan_request(job, job.request)  # raises its error
        if kept.key is not None and "key" not in settings:
            settings = {**settings, "key": kept.key.derive(kept.args, dict(kept.kwargs))}
        request = build_request(b"null", settings)
        node = replace(self._plan_request(job, request), data=msgspec.UNSET, payload=msgspec.UNSET)
        node.call = call
        return node

    def _plan_flow(self, flow: Flow) -> tuple[PlannedNode, ResultDecoder]:
        """Return the node of another flow, as that flow is now."""
        if flow is self:
            raise Refused("a flow cannot be a node of itself", field="flow")
        request = flow.build_request(LIMITS.payload)
        node = self._plan_request(Bound(FLOWS, request, flow._has_id), request)
        plan = flow.plan()
        if plan.returns is not None:
            node.result_queue = self._queue_index(plan.result_queue_of(plan.returns))
        return node, flow._decoder()


def _with_parents(node: PlannedNode, after: tuple[int, ...], on_failure: OnFailure) -> PlannedNode:
    required = set(node.arguments())
    others = tuple(number for number in after if number not in required)
    return replace(node, after=others) if on_failure == "stop" else replace(node, after_any=others)


def keep_ms(keep: Seconds) -> int:
    """Return `keep` in ms. Raises Refused for less than an hour."""
    ms = duration_ms("keep", keep)
    if ms < 3_600_000:
        raise Refused(
            f"keep is {keep}; pass at least one hour, because a flow reads the outcomes of its nodes late "
            "after a failure of all workers",
            field="keep",
        )
    return ms


def _check_bound(job: object) -> Bound[Any]:
    if not isinstance(job, Bound):
        raise Refused(f"{job!r:.60} is not bound; wrap the call in task.bind(...)", field="job")
    return job


def _check_rule(request: EnqueueRequest) -> None:
    """Raise Refused for a request_key, and for another rule than the default and Reject."""
    if request.request_key is not None:
        raise Refused(
            "a node cannot have a request_key, because its flow enqueues it once; leave it out",
            field="request_key",
        )
    rule = request.on_conflict
    if isinstance(rule, Update) and rule.supersede:
        raise Refused(
            "supersede of a node must be left out, because a flow never replaces a run; cancel the flow, so "
            "that its nodes end, too, and enqueue a new one",
            field="supersede",
        )
    if rule != DEFAULT_UPDATE and not isinstance(rule, Reject):
        raise Refused(
            "on_conflict of a node must be left out: its flow never replaces a job with the same id",
            field="on_conflict",
        )


def check_attributes(attributes: Mapping[str, bytes]) -> None:
    """Raise Refused for an attribute with a reserved name."""
    for name in attributes:
        if name.startswith(RESERVED_PREFIX):
            raise Refused(
                f"the attribute {name!r} begins with {RESERVED_PREFIX!r}, which flows use themselves; choose "
                "another name",
                field=f"attributes[{name!r}]",
            )


class Chain:
    """Calls of tasks that run one after the other, returned by `app.chain(...)`.

    Each call gets the result of the call before it as its first argument. The result of the chain is that of
    the last call.
    """

    def __init__(self, flow: Flow, calls: Sequence[Bound[Any] | TaskEnqueuer[..., Any]]) -> None:
        if not calls:
            raise Refused("this chain has no calls; pass tasks, or task.bind(...)", field="jobs")
        jobs = [call.bind() if isinstance(call, TaskEnqueuer) else call for call in calls]
        self._client = flow._client  # noqa: SLF001 - a chain is a flow of one shape
        self._flow = flow
        node = flow.add(jobs[0])
        for job in jobs[1:]:
            node = flow.add_next(job, node)
        flow.returns(node)
        self.id: str = flow.id
        """Id of the flow that runs the calls."""

    def __repr__(self) -> str:
        return f"<Chain {self.id!r}>"

    @property
    def sync(self) -> BlockingChain:
        """This chain with blocking methods, for code without an event loop."""
        from dibs.client.sync.flow import BlockingChain  # noqa: PLC0415 - async programs never load it

        return BlockingChain(self)

    async def enqueue(self, *, connection: Any = None) -> Ticket[Any]:
        """Enqueue the calls as one flow, and return its ticket. See Flow.enqueue.

        Example: `text = await (await app.chain(resize.bind("a.png"), send).enqueue()).result()`
        """
        return await self._flow.enqueue(connection=connection)
