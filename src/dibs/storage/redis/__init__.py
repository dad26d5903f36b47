"""The storage in Redis: every transition one Lua script, every verb one round trip."""

from dibs.storage.redis.storage import RedisStorage, open_url
from dibs.storage.redis.temporary import remove_url, temporary_url

__all__ = ["RedisStorage", "open_url", "temporary_url", "remove_url"]
