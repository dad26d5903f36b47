"""Connections of programs that use dibs by SQL alone: the schema is not on their search path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row


class SqlProgram:
    """A connection in autocommit mode. In statements, `{s}` is the schema."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], schema: str) -> None:
        self.connection = connection
        self.schema = schema

    async def rows(self, text: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        statement: Any = text.replace("{s}", f'"{self.schema}"')
        async with self.connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement, params)
            return await cursor.fetchall() if cursor.description else []

    async def row(self, text: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        (row,) = await self.rows(text, params)
        return row

    async def call(self, function: str, **arguments: Any) -> dict[str, Any]:
        """Call a function that returns one row, with arguments by name."""
        (row,) = await self.calls(function, **arguments)
        return row

    async def calls(self, function: str, **arguments: Any) -> list[dict[str, Any]]:
        named = ", ".join(f"{name} => %({name})s" for name in arguments)
        return await self.rows(f"SELECT * FROM {{s}}.{function}({named})", arguments)

    async def value(self, function: str, **arguments: Any) -> Any:
        """Call a function that returns one value."""
        return (await self.call(function, **arguments))[function]
