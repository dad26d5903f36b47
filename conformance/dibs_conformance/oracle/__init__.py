"""The oracle: a simple, slow implementation of the contract in memory, with which storages are compared.

The oracle shares no logic with the storages. For example, a storage merges the enqueues during a run into one
successor, while the oracle keeps the list of these enqueues and replays it. From the model it imports the
values, and the checks of limits.
"""

from dibs_conformance.oracle.ids import IdRecord as IdRecord
from dibs_conformance.oracle.ids import OneOf as OneOf
from dibs_conformance.oracle.queue import Oracle as Oracle
