"""`Bound`, which `bind` returns: a job with its data and settings, to be enqueued later. `TaskKey` is the
option `key` of a task, which derives the key of each job from the arguments of its call.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from attrs import frozen

from dibs.client.calls.signature import CallSignature
from dibs.client.options.arguments import build_key
from dibs.client.options.job_settings import JobSettings
from dibs.client.options.serde import Serde
from dibs.errors import Refused
from dibs.model.error_text import message_of
from dibs.model.requests import EnqueueRequest, FollowUp

#: Returns the key of a call, as text, a whole number or None, from its arguments.
KeyFunction = Callable[..., str | int | None]
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY_VALUES = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@frozen
class TaskKey:
    """Derives the key of a job from the arguments of a call."""

    _function_name: str
    _read: KeyFunction

    def derive(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """Return the key of a call whose arguments fit the function. Raises Refused with the field `key`."""
        try:
            value = self._read(*args, **kwargs)
        except Exception as error:
            raise Refused(
                f"the key function of {self._function_name} raised {type(error).__name__}: "
                f"{message_of(error)}",
                field="key",
            ) from error
        try:
            return build_key(value)
        except Refused as refused:
            raise Refused(f"{self._function_name}: {refused}", field="key") from None


def build_task_key(function: Callable[..., Any], option: str | KeyFunction | None) -> TaskKey | None:
    """Return the option `key` of a task, or None without it.

    Raises Refused with the field `key` for a name that is no parameter of the task, and for a value that is
    neither a name nor a function.
    """
    if option is None:
        return None
    if isinstance(option, str):
        return TaskKey(function.__name__, _parameter_reader(function, option))
    if not callable(option) or inspect.iscoroutinefunction(option):
        raise Refused(
            f"key is {option!r:.60}; pass the name of a parameter of {function.__name__}, or a `def` "
            "function that takes its arguments",
            field="key",
        )
    return TaskKey(function.__name__, option)


def _parameter_reader(function: Callable[..., Any], name: str) -> KeyFunction:
    """Return a function that takes the arguments of a call and returns the value of one parameter."""
    signature = inspect.signature(function)
    parameter = signature.parameters.get(name)
    if parameter is None or parameter.kind in _MANY_VALUES:
        known = [known for known, one in signature.parameters.items() if one.kind not in _MANY_VALUES]
        raise Refused(
            f"key names {name!r}, which is no parameter of {function.__name__}; its parameters are "
            f"{', '.join(known) or 'none'}",
            field="key",
        )

    by_position = [known for known, one in signature.parameters.items() if one.kind in _BY_POSITION]
    index = by_position.index(name) if name in by_position else len(signature.parameters)

    def read(*args: Any, **kwargs: Any) -> Any:
        return args[index] if index < len(args) else kwargs.get(name, parameter.default)

    return read


R_co = TypeVar("R_co", covariant=True)


@frozen(eq=False)
class KeptCall:
    """A call that cannot be encoded, because results of other jobs are missing. A flow encodes it later."""

    signature: CallSignature
    serde: Serde
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    settings: JobSettings
    key: TaskKey | None


class Bound(Generic[R_co]):
    """A job to be enqueued later, returned by `task.bind(...)` and `queue.bind(...)`.

    Pass it to `enqueue_many`, `flow.add`, `job.then`, `claim.complete` or `claim.fail`. These calls raise the
    errors of its data and settings, so that a batch reports all of its bad jobs together.
    """

    __slots__ = ("_request", "call", "has_id", "queue")

    def __init__(
        self,
        queue: str,
        request: EnqueueRequest | Refused,
        has_id: bool = False,  # noqa: FBT001, FBT002 - a keyword costs time in each `bind`
        call: KeptCall | None = None,
    ) -> None:
        self.queue: str = queue
        """Name of the queue."""
        self._request = request
        #: True if the caller chose the id.
        self.has_id: bool = has_id
        #: The call, if it was refused.
        self.call: KeptCall | None = call

    def __repr__(self) -> str:
        if isinstance(self._request, Refused):
            return f"<Bound for {self.queue!r}, refused: {self._request}>"
        return f"<Bound for {self.queue!r}, id {self._request.job.id!r}>"

    @property
    def request(self) -> EnqueueRequest:
        """The request for the storage. Raises Refused if the data or a setting is not allowed."""
        if isinstance(self._request, Refused):
            # A batch may contain a Bound more than once, and each error gets the index of its own item.
            raise copy.copy(self._request)
        return self._request

    def as_follow_up(self) -> FollowUp:
        """Return the job as a follow-up: a job that is enqueued in the same atomic step as another job ends.

        Raises Refused if it has a request_key. It would have no effect: a job ends only once, and so its
        follow-up is enqueued only once.
        """
        request = self.request
        if request.request_key is not None:
            raise Refused(
                "a follow-up cannot have a request_key; leave it out, because a job ends only once",
                field="request_key",
            )
        return FollowUp(queue=self.queue, job=request.job, on_conflict=request.on_conflict)
