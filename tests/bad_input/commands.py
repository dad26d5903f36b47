"""Bad input to the commands of `dibs`. `q` in a command is the queue of the test."""

from __future__ import annotations

from typing import NamedTuple

REFUSED, USAGE = 1, 2


class Command(NamedTuple):
    """One bad command line."""

    words: str
    #: The exit code.
    code: int
    #: The text that the error names.
    field: str


COMMANDS = [
    Command(*one)
    for one in (
        ("nonsense", USAGE, "nonsense"),
        ("counts --nonsense", USAGE, "--nonsense"),
        ("enqueue", USAGE, "QUEUE"),
        ("enqueue q", USAGE, "JSON"),
        ("enqueue q '{oops'", USAGE, "JSON"),
        ("enqueue q nan", USAGE, "JSON"),
        ("enqueue q '\"\\u0000\"'", REFUSED, "NUL"),
        ("enqueue q 1 2", USAGE, "2"),
        ("enqueue '' 1", REFUSED, "queue"),
        ("enqueue q!fail 1", REFUSED, "queue"),
        ("enqueue q 1 --id ''", REFUSED, "id"),
        (f"enqueue q 1 --id {'x' * 513}", REFUSED, "id"),
        ("enqueue q 1 --delay soon", USAGE, "--delay"),
        ("enqueue q 1 --delay -1", REFUSED, "delay"),
        ("enqueue q 1 --delay nan", REFUSED, "delay"),
        ("enqueue q 1 --priority high", USAGE, "--priority"),
        ("enqueue q 1 --priority 1001", REFUSED, "priority"),
        ("enqueue q 1 --attribute a", USAGE, "--attribute"),
        ("enqueue q 1 --attribute a={", USAGE, "--attribute"),
        ("enqueue q 1 --attribute =1", USAGE, "attribute"),
        ("list", USAGE, "QUEUE"),
        ("list q --state asleep", USAGE, "--state"),
        ("list q --limit 0", USAGE, "--limit"),
        ("list q --limit 1001", USAGE, "--limit"),
        ("list q --limit x", USAGE, "--limit"),
        ("cancel q", USAGE, "ID"),
        ("cancel", USAGE, "QUEUE"),
        ("retry q", USAGE, "--all"),
        ("retry q seen --all", USAGE, "--all"),
        ("amend q", USAGE, "ID"),
        ("amend q seen", USAGE, "--"),
        ("amend q seen --payload {", USAGE, "--payload"),
        ("amend q seen --priority 1001", REFUSED, "priority"),
        ("amend q seen --priority x", USAGE, "--priority"),
        ("amend q seen --delay -1", REFUSED, "delay"),
        ("amend q seen --at yesterday", USAGE, "--at"),
        ("amend q seen --at 2030-01-01T00:00:00 --delay 1", USAGE, "delay"),
        ("amend q seen --attribute a", USAGE, "--attribute"),
        ("events", USAGE, "QUEUE"),
        ("events q --after nonsense", REFUSED, "after"),
        ("pause", USAGE, "QUEUE"),
        ("pause ''", REFUSED, "queue"),
        ("show q", USAGE, "ID"),
        ("move --to memory:", USAGE, "--from"),
        ("move --from memory:", USAGE, "--to"),
        ("worker", USAGE, "MODULE:APP"),
        ("worker nonsense", USAGE, "nonsense"),
        ("worker no_such_module:app", USAGE, "no_such_module"),
        ("worker m:app --processes -1", USAGE, "--processes"),
        ("worker m:app --processes x", USAGE, "--processes"),
        ("worker m:app --grace -1", USAGE, "--grace"),
        ("worker m:app --grace nan", USAGE, "--grace"),
        ("counts --url nonsense", USAGE, "file:"),
        ("counts --url mongo://h", USAGE, "mongo"),
        ("counts --url file://host/x", USAGE, "host"),
        ("counts --url file:x?nonsense=1", USAGE, "nonsense"),
        ("counts --url redis://h/zero", USAGE, "database"),
        ("counts --url redis://u:p@ss@h", USAGE, "%40"),
        ("counts --url postgresql://h/db?nonsense=1", USAGE, "nonsense"),
        ("certify", USAGE, "URL"),
        ("certify nonsense", USAGE, "file:"),
        ("certify memory: --level L9", USAGE, "level"),
    )
]
