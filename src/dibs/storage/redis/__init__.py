"""The storage in Redis: every transition one Lua script, every verb one round trip."""

from dibs.storage.redis.removal import place_url, remove_url
from dibs.storage.redis.storage import RedisStorage, open_url

__all__ = ["RedisStorage", "open_url", "place_url", "remove_url"]
