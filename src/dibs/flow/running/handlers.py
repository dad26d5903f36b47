"""The handlers of flows and of evaluations, which `Dibs(url, flows=True)` registers."""

from __future__ import annotations

from typing import Any, Final

from attrs import define

from dibs.client.calls.current_job import current_job
from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.flow.context import FlowContext
from dibs.flow.running.evaluation import Evaluator
from dibs.model.job import Job
from dibs.model.requests import SettingsPatch
from dibs.model.retry import Exponential
from dibs.model.wakeup import EVALUATIONS, FLOWS

#: A flow never fails because its start or its evaluation did: they are retried until they succeed.
_LIMITS: Final = HandlerLimits(
    timeout=300_000, max_retries=None, max_timeouts=None, max_stalls=None, backoff=Exponential(1, 60)
)
#: Both handlers run before the jobs of most tasks, so that nodes are enqueued early.
_PRIORITY: Final = 200
#: Both wait for the storage most of the time, so they take little capacity.
_SIZE: Final = 1


@define(eq=False)
class FlowHandlers:
    """The functions behind the two queues of flows."""

    _evaluator: Evaluator

    async def start(self, job: Job) -> None:
        """Enqueue the first nodes of a flow, and hand the flow off."""
        await self._evaluator.start(job)
        current_job().hand_off()

    async def evaluate(self, id: str, hint: bytes) -> None:
        """Run one evaluation of a flow."""
        await self._evaluator.evaluate(id, hint)


def register_flow_handlers(context: FlowContext) -> None:
    """Register the handlers of flows and evaluations. Raises DuplicateHandler."""
    handlers = FlowHandlers(Evaluator(context))
    context.handlers.register(_build_handler(FLOWS, handlers.start, _flow_arguments))
    # The log of evaluations would show only releases.
    settings = SettingsPatch(log_level="off")
    context.handlers.register(_build_handler(EVALUATIONS, handlers.evaluate, _evaluation_arguments, settings))


def _flow_arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (job,), {}


def _evaluation_arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (job.id, job.data.payload), {}


def _build_handler(queue: str, function: Any, decode: Any, settings: SettingsPatch | None = None) -> Handler:
    return Handler(
        queue=queue,
        function=function,
        is_async=True,
        serde=JSON,
        decode_arguments=decode,
        limits=_LIMITS,
        size=_SIZE,
        queue_priority=_PRIORITY,
        queue_settings=settings,
    )
