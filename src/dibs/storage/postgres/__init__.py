"""The Postgres storage: the contract restated in SQL, one statement a verb."""

from dibs.storage.postgres.storage import PostgresStorage, open_url
from dibs.storage.postgres.temporary import connect_url, remove_url, temporary_url

__all__ = ["PostgresStorage", "connect_url", "open_url", "temporary_url", "remove_url"]
