"""The settings that tasks declare for their queues, written to the storage when a worker starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from dibs.client.options.job_settings import Retention
from dibs.client.options.queue_settings import Rate
from dibs.errors import ConfigurationError
from dibs.model.job import OutcomeRetention
from dibs.model.requests import Settings, SettingsPatch, StartRate
from dibs.storage.protocol import Storage

logger: Final = logging.getLogger("dibs.worker")

DEFAULTS: Final = Settings()
#: The settings that only a storage with a capability obeys, by its name.
_NEEDED: Final = {"limits": ("per_key", "rate", "key_rate", "max_waiting"), "fair": ("fair",)}


async def apply_declared_settings(storage: Storage, declared: Mapping[str, SettingsPatch]) -> None:
    """Write the declared settings that differ from the stored ones, and log each change.

    A setting that is not declared stays as `queue.configure` has set it. Raise ConfigurationError, before any
    setting is written, if a setting is declared that the storage cannot obey. Raise StorageError,
    OutcomeUnknown or Refused; a repeat of the call is safe.
    """
    if not declared:
        return
    for capability, settings in _NEEDED.items():
        if not getattr(storage.capabilities, capability):
            _refuse(storage, declared, capability, settings)
    stored = {info.name: info.settings for info in await storage.queues()}
    for queue, patch in declared.items():
        changes = _changes(patch, stored.get(queue, DEFAULTS))
        if changes:
            await storage.configure(queue, patch)
        for name, (before, after) in changes.items():
            # The first worker replaces a default. Any other value was set by `configure` or by other code.
            level = logging.INFO if before == getattr(DEFAULTS, name) else logging.WARNING
            values = (_in_seconds(after), _in_seconds(before))
            logger.log(level, "%s: %s is %s now, as its handler declares; it was %s", queue, name, *values)


def _refuse(
    storage: Storage, declared: Mapping[str, SettingsPatch], capability: str, settings: Sequence[str]
) -> None:
    """Raise ConfigurationError if a handler declares one of the settings, which need a capability."""
    found = [
        f"{queue}: {name}"
        for queue, patch in declared.items()
        for name in settings
        if getattr(patch, name) not in (UNSET, getattr(DEFAULTS, name))
    ]
    if found:
        raise ConfigurationError(
            f"handlers declare settings ({', '.join(found)}), but {storage.url} does not have the capability "
            f"`{capability}`, so no job was claimed; use a storage that has it, or leave these options out"
        )


def _in_seconds(value: Any) -> Any:
    if isinstance(value, OutcomeRetention):
        return Retention.from_model(value)
    return Rate.from_model(value) if isinstance(value, StartRate) else value


def _changes(patch: SettingsPatch, stored: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the values before and after of each setting that the patch changes."""
    wanted = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {
        name: (getattr(stored, name), value)
        for name, value in wanted.items()
        if value is not UNSET and value != getattr(stored, name)
    }
