"""Taking a whole place away: for the kit and for tests, never on the way of a job."""

from __future__ import annotations

from redis.exceptions import RedisError

from dibs.storage.redis import keys
from dibs.storage.redis.opening import own_options, servers_at, shown
from dibs.storage.redis.refusals import refusal


async def remove_url(url: str) -> None:
    """Remove every key under the prefix of a URL. Raises StorageError."""
    plain, options = own_options(url, {})
    prefix = keys.checked_prefix(str(options.get("prefix", keys.PREFIX)))
    servers = servers_at(plain)
    try:
        for key in await servers.scan(f"{prefix}:*"):
            # One by one: in a cluster each is where its own slot is.
            await servers.call(key.decode(), "UNLINK", key, repeatable=True)
    except RedisError as error:
        raise refusal(error, shown(url)) from None
    finally:
        await servers.close()
