"""A storage and the oracle side by side: every verb is called on both, and the answers are compared."""

from dibs_conformance.sequential.lockstep.log import Log as Pair
from dibs_conformance.sequential.lockstep.log import Reader as Reader
from dibs_conformance.sequential.lockstep.moving import export_in_parts as export_in_parts
from dibs_conformance.sequential.lockstep.moving import move as move
from dibs_conformance.sequential.lockstep.side import Judges as Judges

__all__ = ["Judges", "Pair", "Reader", "export_in_parts", "move"]
