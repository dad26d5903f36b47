"""The Redis storage: each transition is one Lua script, and each verb one round trip."""

from dibs.storage.redis.storage import RedisStorage, open_url
from dibs.storage.redis.temporary import remove_url, temporary_url

__all__ = ["RedisStorage", "open_url", "remove_url", "temporary_url"]
