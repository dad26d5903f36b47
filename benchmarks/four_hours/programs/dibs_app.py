"""dibs: the task without and with steps, and an enqueue of it."""

import os
import uuid

import work

from dibs import Dibs, current_job

app = Dibs(os.environ["URL"])


# Without timeout, dibs ends the run after a minute, and tries it three times more.
@app.task(queue="export", timeout=work.HOUR * 6)
def export():
    return work.four_hours()


@app.task(queue="export_steps", timeout=work.HOUR * 6)
def export_steps():
    run = uuid.uuid4().hex[:8]
    work.note(run, "start")
    for number in range(1, 5):
        current_job().step(f"part {number}", work.part, run, number)
    work.note(run, "end")
    return run


if __name__ == "__main__":
    with app.sync:
        (export_steps if os.environ["MODE"] == "steps" else export).sync.enqueue()
