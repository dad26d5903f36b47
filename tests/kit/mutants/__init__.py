"""Planted bugs. Each is a small patch that is applied during one test, and names the rule of the contract
that it breaks.

`engine.py` and `by_contract.py` plant bugs in the code that memory and file share, `commit_log.py` in the
file storage, `lua.py` in the scripts of Redis and `sql.py` in the functions of Postgres. All except those in
`engine.py` were written from the contract by an author who had not read the code of the kit.
"""

from tests.kit.mutants import bounds as bounds
from tests.kit.mutants import by_contract as by_contract
from tests.kit.mutants import close_values as close_values
from tests.kit.mutants import commit_log as commit_log
from tests.kit.mutants import costs as costs
from tests.kit.mutants import durability as durability
from tests.kit.mutants import ends as ends
from tests.kit.mutants import engine as engine
from tests.kit.mutants import fences as fences
from tests.kit.mutants import handles as handles
from tests.kit.mutants import limit_races as limit_races
from tests.kit.mutants import limits as limits
from tests.kit.mutants import log_events as log_events
from tests.kit.mutants import lua as lua
from tests.kit.mutants import memos as memos
from tests.kit.mutants import outputs as outputs
from tests.kit.mutants import signals as signals
from tests.kit.mutants import sql as sql
from tests.kit.mutants import start_rates as start_rates
from tests.kit.mutants import supersede as supersede
from tests.kit.mutants import turns as turns
from tests.kit.mutants import update_only as update_only
from tests.kit.mutants.planting import MUTANTS as MUTANTS
from tests.kit.mutants.planting import Mutant as Mutant
