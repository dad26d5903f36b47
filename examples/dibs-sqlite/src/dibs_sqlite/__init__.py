"""A SQLite storage for dibs: an example of a storage outside dibs, built on its protocol and its rules alone.

Each method of the protocol is one SQLite transaction. dibs.model.rules and dibs.model.transitions decide what
a method does to an id; the modules here read and write the rows.

- `storage.py`: SqliteStorage, which checks arguments and runs each method as one transaction on one thread
- `database.py`: the file, its connection and its transactions
- `transaction.py`: the rows that one transaction reads and writes
- `enqueueing.py`, `claiming.py`, `settling.py`, `by_id.py`, `whole_queue.py`, `reading.py`: the methods
- `limits.py`: which jobs a claim takes under limits by key and by rate
- `wait.py`: wake-ups for `wait`
- `sql/`: the tables and the queries

"Write a storage" in the docs of dibs explains the decisions behind this package.
"""

from dibs_sqlite.storage import SqliteStorage as SqliteStorage
from dibs_sqlite.storage import data_folder as data_folder
from dibs_sqlite.storage import open_url as open_url
from dibs_sqlite.storage import remove_url as remove_url
from dibs_sqlite.storage import temporary_url as temporary_url

__all__ = ["SqliteStorage", "data_folder", "open_url", "remove_url", "temporary_url"]
