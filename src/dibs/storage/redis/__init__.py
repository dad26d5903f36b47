"""The Redis storage. Each verb runs one Lua script on the server, in one round trip.

`storage.py` has the verbs, `lua/` their scripts, `codec/` the conversion of arguments and replies, `network/`
the connections, and `wakeups/` the waits.
"""

from dibs.storage.redis.network.client_settings import client_options
from dibs.storage.redis.storage import RedisStorage, open_url
from dibs.storage.redis.temporary import remove_url, temporary_url

__all__ = ["RedisStorage", "client_options", "open_url", "remove_url", "temporary_url"]
