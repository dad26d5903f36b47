"""A SQLite storage for dibs, written against dibs.storage.protocol and dibs.model alone.

A step of the contract is one transaction of SQLite; what it does to an id is decided by dibs.model.rules
and dibs.model.transitions. `storage.py` is the face, `database.py` the file and its transactions, `step.py`
what one transaction sees; the verbs are in `enqueueing.py`, `settling.py`, `claiming.py`, `keeping.py`,
`reading.py` and `waiting.py`. "Write a storage" in the docs of dibs walks through it.
"""

from dibs_sqlite.storage import SqliteStorage as SqliteStorage
from dibs_sqlite.storage import open_url as open_url
from dibs_sqlite.storage import place_url as place_url
from dibs_sqlite.storage import remove_url as remove_url

__all__ = ["SqliteStorage", "open_url", "place_url", "remove_url"]
