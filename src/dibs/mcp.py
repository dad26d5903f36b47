"""Tools of an MCP server whose calls run as jobs: the Tasks extension of the Model Context Protocol.

`JobTools` is an extension of the official SDK. A call of one of its tools enqueues a job and returns at once,
with the id of the job as the id of an MCP task. All state is in the storage: any process with the same tools
answers for the task, also after a restart. The field's words differ here: a *task* of MCP is a job of dibs.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, cast

import anyio
import msgspec
from attrs import define, frozen
from mcp import MCPError
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, ToolBinding
from mcp.server.mcpserver import require_client_extension
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    RequestParams,
    TextContent,
)

from dibs.client.calls.conversion import convert
from dibs.client.options.arguments import Seconds, duration_ms
from dibs.client.options.job_settings import Retention
from dibs.client.status import Status
from dibs.client.task import Task
from dibs.errors import ConfigurationError, JobEnded, JobFailed, QueueFull, Refused
from dibs.model.job import Error

#: The identifier of the Tasks extension (SEP-2663).
IDENTIFIER: Final = "io.modelcontextprotocol/tasks"
#: The attribute of a job that names who called the tool, on a server with authorization.
PRINCIPAL: Final = "mcp.principal"
#: Bytes of the random part of an id. Who knows an id may read the result of its job.
ID_BYTES: Final = 18
#: The most jobs whose latest text a process remembers, so that it reads their output from there.
MAX_TEXTS: Final = 1_000
#: The types of the fields of a form, in JSON Schema.
FORM_TYPES: Final = ("string", "number", "integer", "boolean")
#: The field of a form for a value that is no object, for example a bool.
ONE_FIELD: Final = "value"

Context = ServerRequestContext[Any, Any]


class TaskParams(RequestParams):
    """Parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """Parameters of `tasks/update`: an answer for each key of `inputRequests`."""

    input_responses: dict[str, ElicitResult]


@define
class _Call:
    """A call of a tool: whether it becomes a task, and the result that tells so."""

    is_task: bool
    context: Context
    created: dict[str, Any] | None = None


_CALL: ContextVar[_Call] = ContextVar("dibs_mcp_call")


@frozen
class _Input:
    """A signal that a client may send: its form, and the type of its value."""

    name: str
    type: Any
    form: Mapping[str, Any]
    #: True if the form has the one field ONE_FIELD.
    is_wrapped: bool

    @classmethod
    def build(cls, name: str, type: Any) -> _Input:
        """Return the input of a signal. Raises ConfigurationError for a type that no form has."""
        schema, parts = _schema(type)
        is_wrapped = "properties" not in schema
        if is_wrapped:
            schema = {"properties": {ONE_FIELD: schema}, "required": [ONE_FIELD]}
        fields = {field: _field(name, field, one, parts) for field, one in schema["properties"].items()}
        form = {"type": "object", "properties": fields, "required": list(schema.get("required", ()))}
        return cls(name, type, form, is_wrapped)

    def value_of(self, answer: ElicitResult) -> Any:
        """Return the value of the signal: None for an answer that declines. Raises MCPError."""
        if answer.action != "accept":
            return None
        content = answer.content or {}
        value = content.get(ONE_FIELD) if self.is_wrapped else content
        try:
            convert(value, self.type)
        except ValueError as error:
            raise _invalid(f"the answer for {self.name!r} does not fit: {error}") from error
        return value


def _invalid(message: str) -> MCPError:
    return MCPError(code=INVALID_PARAMS, message=message)


def _schema(type: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the JSON Schema of a type without None, and the parts to which it refers."""
    [whole], parts = msgspec.json.schema_components([type], ref_template="{name}")
    others = [one for one in whole.get("anyOf", ()) if one.get("type") != "null"]
    return _resolve(others[0] if len(others) == 1 else whole, parts), parts


def _resolve(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", parts[schema["$ref"]]) if "$ref" in schema else schema


def _field(name: str, field: str, schema: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a field of a form. Raises ConfigurationError unless it is flat."""
    found = dict(_resolve(schema, parts))
    if "enum" in found:
        found["type"] = "string"
    if found.get("type") not in FORM_TYPES:
        raise ConfigurationError(
            f"inputs: the field {field!r} of {name!r} is no text, number or bool, and forms have no others; "
            "choose a flat type"
        )
    return found


@define(eq=False)
class _TaskTool:
    """A task of dibs as a tool."""

    task: Task[..., Any]
    #: Converts stored results as the SDK converts those of other tools.
    tool: Tool

    def convert(self, value: Any) -> dict[str, Any]:
        return _dump(self.tool.fn_metadata.convert_result(value))


def _dump(result: Any) -> dict[str, Any]:
    fields: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return fields


class JobTools(Extension):
    """Tools of an MCP server whose calls run as jobs, by the Tasks extension of the protocol.

        from mcp.server.mcpserver import MCPServer

        server = MCPServer("reports", extensions=[JobTools([write_report])])

    Each tool has the name, the signature and the docstring of its function. A client that knows the
    extension gets the id of a task at once, and asks for its state with `tasks/get`: what the job last wrote
    with `current_job().write` is the `statusMessage`. `tasks/cancel` cancels the job. For other clients a
    call waits for its job, and such texts are notifications of progress; a client that stops waiting cancels
    the job.

    The worker is another process, for example `dibs worker reports:app`. The server keeps no state: tasks
    outlive its restarts, and several servers may answer for one task.
    """

    identifier = IDENTIFIER

    def __init__(
        self,
        tasks: Iterable[Task[..., Any]],
        *,
        inputs: Mapping[str, Any] | None = None,
        keep: Seconds = "1d",
        poll: Seconds = 1,
    ) -> None:
        """Take the tasks that become tools.

        - `inputs`: the signals that clients may send, by name, each with the type that the handler passes to
          `wait_for`: text, number, bool, or a dataclass of these. While a job waits for one, its task is
          `input_required`, and the client shows a form with what the job last wrote. Who declines sends None,
          so a type `Approval | None` lets the handler decide. Tools then need a client with the extension.
        - `keep`: time for which a result is kept, in seconds or as text.
        - `poll`: time between two questions of a client.

        Raises ConfigurationError for two tasks of one name, for a type of an input that is not flat, and for
        a `keep` of 0.
        """
        if not duration_ms("keep", keep):
            raise ConfigurationError("keep is 0, so no client could fetch a result; set a time such as '1d'")
        self._retention = Retention(completed=keep, failed=keep, cancelled=keep)
        self._poll_ms = duration_ms("poll", poll)
        self._inputs = {name: _Input.build(name, type) for name, type in (inputs or {}).items()}
        self._tools: dict[str, _TaskTool] = {}
        #: The id of a task -> the offset up to which its output was read, and the latest text.
        self._texts: OrderedDict[str, tuple[str | None, str]] = OrderedDict()
        for task in tasks:
            name = task.function.__name__
            if name in self._tools:
                raise ConfigurationError(f"two tasks have the name {name!r}; a tool needs its own")
            self._tools[name] = _TaskTool(task, Tool.from_function(self._build_function(task)))

    def tools(self) -> Sequence[ToolBinding]:
        """Return the tools, for the server."""
        return [ToolBinding(tool.tool.fn) for tool in self._tools.values()]

    def methods(self) -> Sequence[MethodBinding]:
        """Return `tasks/get`, `tasks/update` and `tasks/cancel`, for the server."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", UpdateParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        """Return the new task of a call, in place of the result of its tool."""
        if params.name not in self._tools:
            return await call_next(ctx)
        is_task = _declares_tasks(ctx)
        if not is_task and self._inputs:
            require_client_extension(ctx, IDENTIFIER)
        call = _Call(is_task, ctx)
        token = _CALL.set(call)
        try:
            result = await call_next(ctx)
        finally:
            _CALL.reset(token)
        return result if call.created is None else call.created

    def _build_function(self, task: Task[..., Any]) -> Callable[..., Any]:
        """Return the function of a tool. The SDK calls it with arguments that fit its signature."""

        # `wraps` keeps the signature, from which the SDK makes the schemas of arguments and result.
        @wraps(task.function)
        async def enqueue(*args: Any, **kwargs: Any) -> Any:
            call = _CALL.get()
            id = secrets.token_urlsafe(ID_BYTES)
            jobs = task.options(id=id, retention=self._retention, attributes=_principal_attributes())
            try:
                ticket = await jobs.enqueue(*args, **kwargs)
            except (Refused, QueueFull) as error:
                raise ToolError(str(error)) from error
            if not call.is_task:
                return await self._wait(call.context, ticket)
            status = await task.queue.get(id)
            assert status is not None, "bug in dibs: the outcome is kept"  # noqa: S101
            task_id = f"{task.function.__name__}.{id}"
            call.created = {"resultType": "task", **await self._fields(task_id, status)}
            return CallToolResult(content=[], is_error=True)  # replaced by `created`

        return enqueue

    async def _wait(self, ctx: Context, ticket: Any) -> Any:
        """Return the result of a job, and pass its output on as progress. Raises ToolError."""
        try:
            with suppress(Refused):  # the storage keeps no output
                number = 0
                async for chunk in ticket.output():
                    if chunk.kind == "value":
                        number += 1
                        await ctx.session.report_progress(number, message=_text(chunk.value))
            return await ticket.result(wait=None)
        except JobFailed as failed:
            raise ToolError(_failure(failed.error)) from failed
        except JobEnded as ended:
            raise ToolError(str(ended)) from ended
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await ticket.cancel(running=True)
            raise

    # -- methods of the extension --------------------------------------------------------------------

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        tool, status = await self._find(ctx, params.task_id)
        return {"resultType": "complete", **await self._fields(params.task_id, status, tool)}

    async def _update(self, ctx: Context, params: UpdateParams) -> HandlerResult:
        tool, status = await self._find(ctx, params.task_id)
        key = _input_key(status)
        # Other keys are those of earlier waits, or of none: the protocol says to ignore them.
        if key in params.input_responses and (wait := status.waits_for) and wait.name in self._inputs:
            value = self._inputs[wait.name].value_of(params.input_responses[key])
            request_key = f"mcp.{status.id}.{key}"
            await tool.task.queue.signal(status.id, wait.name, value, request_key=request_key)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        tool, status = await self._find(ctx, params.task_id)
        await tool.task.queue.cancel(status.id, running=True)
        return {"resultType": "complete"}

    async def _find(self, ctx: Context, task_id: str) -> tuple[_TaskTool, Status]:
        """Return the tool and the job of a task. Raises MCPError for an unknown task, or another caller."""
        require_client_extension(ctx, IDENTIFIER)
        name, _, id = task_id.partition(".")
        tool = self._tools.get(name)
        status = None if tool is None else await tool.task.queue.get(id)
        if tool is None or status is None or status.attributes.get(PRINCIPAL) != _principal():
            raise _invalid("no such task: it is unknown, or its result has expired")
        return tool, status

    async def _fields(self, task_id: str, status: Status, tool: _TaskTool | None = None) -> dict[str, Any]:
        """Return a task as the protocol describes it; with its result if `tool` is there."""
        created, ends = status.enqueued_at, status.expires_at
        kept = None if ends is None or created is None else ends - created
        fields = {
            "taskId": task_id,
            "status": "working",
            "createdAt": _iso(created),
            "lastUpdatedAt": _iso(status.ended_at or status.claimed_at or created),
            "ttlMs": None if kept is None else round(kept.total_seconds() * 1000),
            "pollIntervalMs": self._poll_ms,
        }
        text = "" if tool is None else await self._latest_text(task_id, tool, status.id)
        if text:
            fields["statusMessage"] = text
        if tool is not None:
            fields |= self._state(tool, status, text)
        return fields

    def _state(self, tool: _TaskTool, status: Status, text: str) -> dict[str, Any]:
        """Return the status of a task, and what belongs to it."""
        match status.state:
            case "completed":
                return {"status": "completed", "result": tool.convert(status.result)}
            case "failed":
                # By the protocol, `failed` is for errors of the protocol, and an error of a tool is a result.
                content = TextContent(type="text", text=_failure(status.error))
                return {
                    "status": "completed",
                    "result": _dump(CallToolResult(content=[content], is_error=True)),
                }
            case "cancelled":
                return {"status": "cancelled"}
            case _ if (wait := status.waits_for) and (one := self._inputs.get(wait.name)):
                message = text or f"{tool.tool.name} waits for {wait.name!r}"
                params = ElicitRequestFormParams(message=message, requested_schema=dict(one.form))
                requests = {_input_key(status): _dump(ElicitRequest(params=params))}
                return {"status": "input_required", "inputRequests": requests}
            case _:
                return {"status": "working"}

    async def _latest_text(self, task_id: str, tool: _TaskTool, id: str) -> str:
        """Return the latest text that a job has written; "" for none, and on a storage without output."""
        offset, text = self._texts.pop(task_id, (None, ""))
        with suppress(Refused):
            async for chunk in tool.task.queue.output(id, after=offset, follow=False):
                offset = chunk.offset
                text = _text(chunk.value) if chunk.kind == "value" else text
        self._texts[task_id] = offset, text
        if len(self._texts) > MAX_TEXTS:
            self._texts.popitem(last=False)
        return text


def _declares_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return bool(capabilities and IDENTIFIER in (capabilities.extensions or {}))


def _input_key(status: Status) -> str:
    """Return the key of the wait of a job, which no other wait of the job has; "" without a wait."""
    wait = status.waits_for
    return "" if wait is None else f"{wait.name}.{wait.number}"


def _failure(error: Error | None) -> str:
    """Return what a client learns of an error: the text of a PermanentError, else only the type.

    The SDK does the same with other tools: an error that nobody wrote for the client may contain secrets.
    """
    if error is None:
        return "the job failed"
    if error.kind == "permanent":
        return error.message
    return f"the job failed with {error.type}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _iso(time: Any) -> str | None:
    return None if time is None else time.isoformat().replace("+00:00", "Z")


def _principal() -> list[str | None] | None:
    """Return who calls, on a server with authorization; None on others."""
    token = get_access_token()
    return None if token is None else list(principal_components(token))


def _principal_attributes() -> dict[str, Any]:
    principal = _principal()
    return {} if principal is None else {PRINCIPAL: principal}
