"""Calls of the Lua code: as functions where the servers have them, and as scripts elsewhere.

A server that has lost the library gets it again, in the same way as a lost script: after FUNCTION FLUSH, on a
new node of a cluster, and after a failover to a replica without it. So each version of dibs loads its own
library, and two versions may use a server at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from attrs import define
from redis.exceptions import (
    AskError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from dibs.storage.redis.network import scripts
from dibs.storage.redis.network.errors import is_read_only, lacks_payload, translate_error
from dibs.storage.redis.network.servers import Servers, is_transient

#: The error reply of a server that does not have the library.
_NO_FUNCTION: Final = "Function not found"
#: Starts of the error replies with which a server that may not write refuses a function as a whole.
NO_WRITES: Final = ("MISCONF", "NOREPLICAS")


@define(eq=False)
class ScriptCalls:
    """Calls of scripts on the servers of a storage. `url` names them in messages."""

    servers: Servers
    url: str
    #: True if all servers have functions and permit them to this account.
    has_functions: bool

    def command(self, verb: str, keys: list[str], arguments: list[Any]) -> tuple[Any, ...]:
        """Return the command that calls the code of a verb."""
        if self.has_functions:
            function = f"{scripts.library_name(self.servers.database)}_{verb}"
            return ("FCALL", function, len(keys), *keys, *arguments)
        return ("EVALSHA", scripts.script(verb, self.servers.database).sha, len(keys), *keys, *arguments)

    async def run(
        self,
        verb: str,
        keys: list[str],
        arguments: list[Any],
        *,
        repeatable: bool = False,
        ahead: Sequence[tuple[Any, ...]] = (),
    ) -> Any:
        """Run the code of a verb on the server of its first key, and return its reply.

        The commands `ahead` run before it, in the same request. Raise StorageError, or OutcomeUnknown if the
        reply was lost.
        """
        send = partial(self.servers.call, keys[0], repeatable=repeatable, ahead=ahead)
        command = self.command(verb, keys, arguments)
        try:
            try:
                return await send(*command)
            except ResponseError as error:
                if not _lacks_code(error):
                    raise
                lacks_library = str(error).startswith(_NO_FUNCTION)
            if lacks_library and await self._load_library(keys[0]):
                try:
                    return await send(*command)
                except ResponseError as error:
                    if not _lacks_code(error):
                        raise
            return await self._run_script(send, verb, (len(keys), *keys, *arguments))
        except RedisError as error:
            raise translate_error(error, self.url) from None

    async def _load_library(self, key: str) -> bool:
        """Load the library into the server of a key. Return False if the server refuses it.

        A server that is full, read-only, or receives the slot of the key from another node refuses it.
        """
        text = scripts.library_text(self.servers.database)
        try:
            await self.servers.call(key, "FUNCTION", "LOAD", text, repeatable=True)
        except ResponseError as error:
            return "already exists" in str(error)  # another process has loaded it
        return True

    async def _run_script(
        self, send: Callable[..., Awaitable[Any]], verb: str, words: tuple[Any, ...]
    ) -> Any:
        script = scripts.script(verb, self.servers.database)
        try:
            return await send("EVALSHA", script.sha, *words)
        except NoScriptError:
            # Proof that the script did not run, so EVAL with its text cannot run it twice.
            return await send("EVAL", script.text, *words)


def _lacks_code(error: RedisError) -> bool:
    """Return whether the server did not run a function or a script, and another form of it may run.

    A server that is full, read-only, or cannot store its data refuses a function before it begins. A script
    begins, and fails only at a write that the server refuses. After a failover, the server may lack a payload
    that was sent ahead.
    """
    text = str(error)
    return (
        isinstance(error, (NoScriptError, OutOfMemoryError))
        or is_read_only(error)
        or lacks_payload(error)
        or text.startswith((_NO_FUNCTION, *NO_WRITES))
        or (isinstance(error, NoPermissionError) and "'fcall'" in text)
    )


def did_not_run(error: RedisError) -> bool:
    """Return whether the server lacks the code or the queue, or cannot serve at the moment."""
    # A MovedError is an AskError.
    return isinstance(error, AskError) or _lacks_code(error) or is_transient(error)
