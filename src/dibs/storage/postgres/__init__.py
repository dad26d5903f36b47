"""The Postgres storage: each verb is one SQL statement that calls one function of the schema."""

from dibs.storage.postgres.storage import PostgresStorage, open_url
from dibs.storage.postgres.temporary import connect_url, remove_url, temporary_url

__all__ = ["PostgresStorage", "connect_url", "open_url", "remove_url", "temporary_url"]
