"""The job of all systems: four parts of an hour. It writes its start, its parts and its end to a file."""

import os
import time
import uuid
from pathlib import Path

HOUR = float(os.environ["HOUR"])
JOURNAL = Path(os.environ["JOURNAL"])


def note(run: str, what: str) -> None:
    with JOURNAL.open("a") as file:
        file.write(f"{time.time():.3f} {run} {what}\n")


def part(run: str, number: int) -> int:
    until = time.time() + HOUR
    while time.time() < until:
        note(run, "works")
        time.sleep(HOUR / 20)
    note(run, f"part {number}")
    return number


def four_hours() -> str:
    run = uuid.uuid4().hex[:8]
    note(run, "start")
    for number in range(1, 5):
        part(run, number)
    note(run, "end")
    return run
