"""Creation and removal of temporary storages for the conformance kit and for tests.

Each uses the server in the URL that the user gives, with a prefix of its own.
"""

from __future__ import annotations

from redis.exceptions import RedisError

from dibs.storage.addresses import redact_url
from dibs.storage.redis import keys
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.opening import servers_for, split_options
from dibs.storage.registry import with_option


def temporary_url(url: str, name: str) -> str:
    """Return the URL with `name` as its prefix, so that its keys are separate from those of `url`."""
    return with_option(url, "prefix", name)


async def remove_url(url: str) -> None:
    """Delete every key that begins with the prefix of a URL. Raise StorageError if the server fails."""
    plain, options = split_options(url, {})
    prefix = keys.check_prefix(str(options.get("prefix", keys.PREFIX)))
    servers = servers_for(plain)
    try:
        for key in await servers.scan_keys(f"{prefix}:*"):
            # One UNLINK per key: in a cluster, keys of one command must share a slot.
            await servers.call(key.decode(), "UNLINK", key, repeatable=True)
    except RedisError as error:
        raise translate_error(error, redact_url(url)) from None
    finally:
        await servers.close()
