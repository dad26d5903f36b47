"""The Postgres storage. Each verb is one SQL statement, which calls one function of the schema.

`storage.py` has the verbs, `functions/` their SQL functions, `migrations/` the tables, `sql/` the statements,
`codec/` the conversion of parameters and rows, `network/` the connections, and `wakeups/` the waits.
"""

from dibs.storage.postgres.network.pool_settings import client_options
from dibs.storage.postgres.storage import PostgresStorage, open_url
from dibs.storage.postgres.temporary import connect_url, remove_url, temporary_url

__all__ = ["PostgresStorage", "client_options", "connect_url", "open_url", "remove_url", "temporary_url"]
