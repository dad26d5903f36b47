"""`dibs flow`: show, list, cancel and retry, on flows that have run."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import pytest

from dibs import Dibs, PermanentError, current_job
from dibs.flow.builder import Flow
from tests.cli.shell import Shell
from tests.cli.terminal import run_in_terminal
from tests.cli.test_completion import completed
from tests.cli.test_json_output import SHAPES, differences

#: The calls of `load` that fail.
FAILING: Final[set[int]] = set()


async def load(number: int) -> int:
    if number in FAILING:
        raise PermanentError(f"no \x1b[31m{number}")
    return number


async def total(parts: list[int]) -> int:
    return sum(parts)


async def approve(question: str) -> None:
    current_job().hand_off()


class Program:
    """An app with flows on the storage of a shell."""

    def __init__(self, shell: Shell) -> None:
        self.app = Dibs(shell.url, flows=True)
        self.load = self.app.task(queue="load", max_retries=0)(load)
        self.total = self.app.task(queue="total")(total)
        self.approve = self.app.task(queue="approve")(approve)

    def flow(self, id: str, size: int = 3) -> Flow:
        flow = self.app.flow(id=id)
        parts = [flow.add(self.load.bind(number)) for number in range(size)]
        flow.returns(flow.add(self.total.bind([part.output for part in parts])))
        return flow

    def enqueue(self, *flows: Flow) -> None:
        async def enqueued() -> None:
            async with self.app:
                for flow in flows:
                    await flow.enqueue()

        asyncio.run(enqueued())

    def enqueue_batch(self, id: str, size: int) -> None:
        async def enqueued() -> None:
            async with self.app, self.app.batch(id=id) as batch:
                await batch.enqueue_many(self.load.bind(number) for number in range(size))

        asyncio.run(enqueued())

    def work(self, *, until_state: tuple[str, str, str] | None = None) -> None:
        """Run all jobs; with `until_state` until the node of a flow with a queue has a state."""

        async def worked() -> None:
            async with self.app:
                if until_state is None:
                    await self.app.work(until="empty", handle_signals=False)
                    return
                work = asyncio.create_task(self.app.work(handle_signals=False))
                while not await self._has(*until_state):  # noqa: ASYNC110 - the storage has the state
                    await asyncio.sleep(0.01)
                self.app.stop()
                await work

        asyncio.run(worked())

    async def _has(self, id: str, queue: str, state: str) -> bool:
        status = await self.app.get_flow(id).status()
        return status is not None and (queue, state) in [(node.queue, node.state) for node in status.nodes]


@pytest.fixture
def program(shell: Shell) -> Program:
    FAILING.clear()
    return Program(shell)


def test_a_flow_that_waits_is_drawn(shell: Shell, program: Program) -> None:
    program.enqueue(program.flow("import-42"))
    shown = shell.type("flow", "show", "import-42")

    assert (0, "") == (shown.exit_code, shown.stderr)
    assert [
        "flow import-42 waits for a worker with flows=True: 0 of 4 nodes completed, 4 open",
        "",
        "○      #0 load   waiting",
        "│ ○    #1 load   waiting",
        "│ │ ○  #2 load   waiting",
        "├─┴─╯",
        "○      #3 total  waiting",
    ] == shown.stdout.splitlines()


def test_a_failed_node_is_named_with_its_error_and_retried(shell: Shell, program: Program) -> None:
    FAILING.add(1)
    program.enqueue(program.flow("import 42", 50))
    program.work()
    screen = shell.type("flow", "show", "import 42").stdout.splitlines()
    id = shell.json("flow", "show", "import 42")["nodes"][1]["id"]

    assert "flow import 42 has failed: 49 of 51 nodes completed, 1 failed, 1 skipped" == screen[0]
    assert ["✗  50 x load  1 failed, 49 completed", "◌  #50 total  skipped"] == screen[2:4]
    assert [
        "#1 load failed: dibs.errors.PermanentError: no \\x1b[31m1",
        f"  dibs show load '{id}'",
        "run them again: dibs flow retry 'import 42'",
    ] == screen[5:]
    assert 0 == shell.type("show", "load", id).exit_code

    FAILING.clear()
    retried = shell.type("flow", "retry", "import 42")
    program.work()

    assert (0, "queued  dibs.flows/import 42\n") == (retried.exit_code, retried.stdout)
    assert (51, "completed") == tuple(
        map(shell.json("flow", "show", "import 42").get, ("completed", "state"))
    )


@pytest.mark.parametrize("command", ["cancel", "retry"])
def test_answers_are_printed_for_each_id(shell: Shell, program: Program, command: str) -> None:
    program.enqueue(program.flow("done"))
    program.work()
    program.enqueue(program.flow("waiting"))
    result = shell.type("flow", command, "done", "waiting", "unknown")
    lines = [line.split(":")[0] for line in result.stdout.splitlines()]
    of_waiting = {"cancel": "cancelled", "retry": "live     "}[command]

    assert 1 == result.exit_code
    assert [
        "completed  dibs.flows/done",
        f"{of_waiting}  dibs.flows/waiting",
        "not_found  dibs.flows/unknown",
    ] == lines
    assert [] == differences(SHAPES["cancel"], shell.json("flow", command, "done", code=1))


def test_a_running_flow_is_cancelled_by_its_worker(shell: Shell, program: Program) -> None:
    flow = program.app.flow(id="import-42")
    question = flow.add(program.approve.bind("all right?"))
    flow.add(program.load.bind(9), after=[question])
    program.enqueue(flow)
    program.work(until_state=("import-42", "approve", "handed_off"))
    shown = shell.type("flow", "show", "import-42").stdout
    cancelled = shell.type("flow", "cancel", "import-42")
    program.work()

    assert [
        "flow import-42 runs: 0 of 2 nodes completed, 2 open",
        "",
        "◐  #0 approve  handed off",
        "○  #1 load     waiting",
    ] == shown.splitlines()
    assert (0, "requested  dibs.flows/import-42: a worker cancels its open nodes\n") == (
        cancelled.exit_code,
        cancelled.stdout,
    )
    assert "cancelled" == shell.json("flow", "show", "import-42")["state"]


@pytest.mark.parametrize("words", [("show",), ("cancel",), ("retry",)], ids=" ".join)
def test_an_unknown_flow_is_an_error(shell: Shell, program: Program, words: tuple[str, ...]) -> None:
    program.enqueue(program.flow("known"))
    result = shell.type("flow", *words, "unknown")

    assert 1 == result.exit_code
    assert "unknown" in result.stdout + result.stderr


def test_a_job_without_a_plan_is_refused(shell: Shell) -> None:
    shell.type("enqueue", "dibs.flows", "1", "--id", "a")
    result = shell.type("flow", "show", "a")

    assert 1 == result.exit_code
    assert "the job dibs.flows/a has no plan of a flow" in result.stderr


def test_flows_are_listed_by_state(shell: Shell, program: Program) -> None:
    FAILING.add(0)
    program.enqueue(program.flow("bad", 1))
    program.work()
    program.enqueue(program.flow("waiting"))
    failed = shell.json("flow", "list", "--state", "failed")

    assert ["bad"] == [flow["id"] for flow in failed["flows"]]
    assert "FlowFailed: " in failed["flows"][0]["error"]
    assert (
        "waiting" == shell.type("flow", "list", "--state", "waiting", "--format", "lines").stdout.split()[0]
    )
    assert (
        "there is no flow in the state running; 1 flow waits for a worker: dibs flow list --state waiting\n"
        == shell.type("flow", "list").stdout
    )
    assert 2 == shell.type("flow", "list", "--state", "asleep").exit_code


def test_pages_of_flows_continue(shell: Shell, program: Program) -> None:
    program.enqueue(program.flow("a"), program.flow("b"))
    first = shell.json("flow", "list", "--state", "waiting", "--limit", "1")
    second = shell.json("flow", "list", "--state", "waiting", "--limit", "1", "--after", first["after"])

    assert {"a", "b"} == {flow["id"] for page in (first, second) for flow in page["flows"]}


def test_the_page_shows_the_printed_json(shell: Shell, program: Program) -> None:
    FAILING.add(0)
    program.enqueue(program.flow("import-42"))
    program.work()

    assert [] == differences(SHAPES["flow-show"], shell.json("flow", "show", "import-42"))
    assert [] == differences(SHAPES["flow-list"], shell.json("flow", "list", "--state", "failed"))


def test_nested_flows_and_chosen_ids_are_named(shell: Shell, program: Program) -> None:
    outer = program.app.flow(id="outer")
    outer.add(program.flow("inner", 1), after=[outer.add(program.load.options(id="chosen").bind(1))])
    program.enqueue(outer)
    program.work()

    assert ["●  #0 load/chosen  completed", "●  #1 flow inner   completed"] == lines(shell, "show", "outer")[
        2:
    ]
    flows = shell.json("flow", "list", "--state", "completed", "--nested")["flows"]
    assert {("outer", None), ("inner", "outer")} == {(flow["id"], flow["part_of"]) for flow in flows}


def test_a_batch_is_shown_by_the_numbers_of_its_members(shell: Shell, program: Program) -> None:
    FAILING.add(1)
    program.enqueue_batch("mailing", 30)
    waiting = shell.type("flow", "show", "mailing").stdout
    program.work()
    fields = shell.json("flow", "show", "mailing")

    assert "batch mailing waits for a worker with flows=True\n" == waiting
    assert "batch mailing has completed: 29 of 30 members completed, 1 failed\n" == lines_of(
        shell, "show", "mailing"
    )
    assert [] == differences(SHAPES["flow-show-batch"], fields)
    assert 2 == shell.type("flow", "show", "mailing", "--mermaid").exit_code
    assert [("mailing", "batch")] == [
        (flow["id"], flow["kind"]) for flow in shell.json("flow", "list", "--state", "completed")["flows"]
    ]
    assert 2 == len(shell.json("flow", "list", "--state", "completed", "--nested")["flows"])


def test_a_batch_is_cancelled(shell: Shell, program: Program) -> None:
    program.enqueue_batch("mailing", 3)
    cancelled = shell.json("flow", "cancel", "mailing")["jobs"]
    program.work()

    assert [{"id": "mailing", "answer": "requested"}] == cancelled
    assert "batch mailing was cancelled\n" == lines_of(shell, "show", "mailing")


@pytest.mark.parametrize(
    ("words", "state"),
    [(("finish", "--result", "true"), "completed"), (("cancel", "--running"), "cancelled")],
    ids=["finish", "cancel"],
)
def test_the_end_of_a_node_by_a_command_wakes_its_flow(
    shell: Shell, program: Program, words: tuple[str, ...], state: str
) -> None:
    """Without a wake-up, the evaluation waits for its timer."""
    flow = program.app.flow(id="f")
    flow.add(program.approve.bind("all right?"))
    program.enqueue(flow)
    program.work(until_state=("f", "approve", "handed_off"))
    (job,) = shell.json("list", "approve", "--state", "handed_off")["jobs"]
    revision = ("--revision", str(job["current"]["revisions"][1])) if words[0] == "finish" else ()
    due = [shell.json("counts", "dibs.flows.evaluate")["queues"]["dibs.flows.evaluate"]["scheduled"]]
    answer = shell.json(words[0], "approve", job["id"], *words[1:], *revision)["jobs"][0]["answer"]
    due += [shell.json("counts", "dibs.flows.evaluate")["queues"]["dibs.flows.evaluate"]["scheduled"]]

    assert answer in ("done", "requested", "cancelled")
    assert [1, 0] == due
    assert state == shell.json("flow", "show", "f")["nodes"][0]["state"]


def test_lines_have_one_node_each(shell: Shell, program: Program) -> None:
    program.enqueue(program.flow("import-42", 2))
    rows = [line.split("\t") for line in lines(shell, "show", "import-42", "--format", "lines")]

    assert [("0", "load", ""), ("1", "load", ""), ("2", "total", "0,1")] == [
        (row[0], row[1], row[4]) for row in rows
    ]


def test_mermaid_draws_the_same_rows(shell: Shell, program: Program) -> None:
    program.enqueue(program.flow("import-42", 40))
    text = lines(shell, "show", "import-42", "--mermaid")

    assert [
        "flowchart TD",
        '    n0["40 x load<br>40 waiting"]',
        '    n1["#35;40 total<br>waiting"]',
        "    n0 --> n1",
    ] == text[:4]
    assert "    class n0,n1 open" == text[-1]


def lines_of(shell: Shell, *words: str) -> str:
    return shell.type("flow", *words).stdout


def lines(shell: Shell, *words: str) -> list[str]:
    return shell.type("flow", *words).stdout.splitlines()


def test_watch_ends_with_the_flow(shell: Shell, program: Program) -> None:
    program.enqueue(program.flow("import-42"))
    watcher = shell.start("flow", "show", "import-42", "--watch", "--json", "--url", shell.url)
    assert watcher.stdout is not None
    first = json.loads(watcher.stdout.readline())
    program.work()
    rest = watcher.communicate(timeout=30)[0].splitlines()

    assert (0, "waiting") == (watcher.returncode, first["state"])
    assert "completed" == json.loads(rest[-1])["state"]


def test_a_drawing_fits_a_terminal(shell: Shell, program: Program) -> None:
    FAILING.add(3)
    program.enqueue(program.flow("a-long-id-" * 12, 5))
    program.work()
    screen = run_in_terminal(shell, "flow", "show", "a-long-id-" * 12)

    assert 0 == screen.code
    commands = [line for line in screen.lines if "dibs " in line]
    assert 80 >= max(len(line) for line in screen.lines if line not in commands)
    assert "✗" in screen.text


@pytest.mark.parametrize("command", ["show", "cancel", "retry"])
def test_ids_of_running_and_failed_flows_are_completed(
    shell: Shell, program: Program, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAILING.add(0)
    program.enqueue(program.flow("import-42"), program.flow("other"))
    program.work()
    monkeypatch.setenv("DIBS_URL", shell.url)

    assert ["import-42"] == completed("flow", command, "im")
    assert [] == completed("flow", command, "x")


def test_a_memory_storage_is_refused(shell: Shell) -> None:
    assert 1 == shell.type("flow", "show", "a", url="memory:").exit_code


def test_a_missing_folder_is_named(shell: Shell) -> None:
    result = shell.type("flow", "show", "a")

    assert 1 == result.exit_code
    assert "there is no directory" in result.stderr


def test_no_app_is_imported(shell: Shell, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of the flow cannot be imported in the folder of the shell."""
    program.enqueue(program.flow("import-42"))
    done = shell.run("flow", "show", "import-42", "--url", shell.url)

    assert (0, "") == (done.returncode, done.stderr)
