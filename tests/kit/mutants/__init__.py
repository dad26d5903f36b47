"""Planted bugs: each is a small patch, applied while one test runs, and names what of the contract it breaks.

`engine.py` and `by_contract.py` are planted in what memory and file share, `commit_log.py` in the file
storage alone, `lua.py` in the scripts of Redis and `sql.py` in the functions of Postgres. All but `engine.py`
were written from the contract, by somebody who knew the names of the kit's laws and not their text.
"""

from tests.kit.mutants import by_contract as by_contract
from tests.kit.mutants import commit_log as commit_log
from tests.kit.mutants import engine as engine
from tests.kit.mutants import lua as lua
from tests.kit.mutants import sql as sql
from tests.kit.mutants.planting import MUTANTS as MUTANTS
from tests.kit.mutants.planting import Mutant as Mutant
