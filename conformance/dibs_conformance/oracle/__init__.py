"""The oracle: a simple, slow implementation of the contract, written independently of every storage.

It keeps the list of updates of each job and replays it, scans lists, and gets `now` as an argument. It
imports the values of the model, and none of the engine's logic.
"""

from dibs_conformance.oracle.ids import IdRecord as IdRecord
from dibs_conformance.oracle.ids import OneOf as OneOf
from dibs_conformance.oracle.storage import Oracle as Oracle
