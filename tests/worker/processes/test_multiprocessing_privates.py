"""The undocumented parts of multiprocessing that dibs uses, on the Python version that runs this test."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import re
from multiprocessing import connection, process, spawn, util

import pytest

from dibs.worker.processes import multiprocessing_privates as privates
from dibs.worker.processes.child_process import PROCESS_NAME, SPAWN_CONTEXT
from tests.source import PROJECT

ADVICE = "Python has changed it: adapt src/dibs/worker/processes/multiprocessing_privates.py"
#: A string literal or attribute access with a private name of multiprocessing.
PRIVATE = re.compile(
    r"_inheriting\b|_args_from_interpreter_flags|_exit_function\b|get_preparation_data|spawn\.prepare\("
)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (util, "_args_from_interpreter_flags"),
        (util, "_exit_function"),
        (atexit, "_run_exitfuncs"),
        (spawn, "get_executable"),
        (spawn, "get_preparation_data"),
        (spawn, "prepare"),
    ],
    ids=str,
)
def test_each_function_is_still_there(module: object, name: str) -> None:
    assert callable(getattr(module, name, None)), f"{module} has no function {name}. {ADVICE}"


def test_the_interpreter_command_starts_an_interpreter() -> None:
    command = privates.interpreter_command()

    assert all(isinstance(part, str) for part in command)
    assert os.access(command[0], os.X_OK), f"{command[0]} is no program. {ADVICE}"


def test_the_preparation_data_has_the_keys_that_dibs_converts_and_fits_into_json() -> None:
    raw = spawn.get_preparation_data(PROCESS_NAME)
    data = privates.preparation_data(PROCESS_NAME)

    assert {"name", "authkey", "sys_path", "sys_argv", "dir"} <= raw.keys(), ADVICE
    assert data == json.loads(json.dumps(data)), f"a value does not fit into JSON. {ADVICE}"
    assert bytes.fromhex(data["authkey"]) == bytes(multiprocessing.current_process().authkey)


def test_a_message_of_a_connection_begins_with_its_length() -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send_bytes(b"message")
        raw = os.read(ours.fileno(), 100)

    assert isinstance(ours, connection.Connection)
    assert privates.FRAME_HEADER.pack(7) + b"message" == raw, f"the frames differ. {ADVICE}"


def report_importing(pipe: connection.Connection, *importing: bool) -> None:
    pipe.send_bytes(bytes([*importing, privates.is_importing_main_script()]))


class ImportedByChild:
    """An argument whose unpickling, in the child, happens while the main script may be imported."""

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return privates.is_importing_main_script, ()


def test_a_spawned_child_knows_that_it_imports_the_main_script() -> None:
    """Multiprocessing marks the current process until the child has unpickled its target and arguments."""
    ours, theirs = SPAWN_CONTEXT.Pipe()
    child = SPAWN_CONTEXT.Process(
        target=report_importing, args=(theirs, ImportedByChild()), name=PROCESS_NAME
    )
    child.start()
    try:
        assert ours.poll(60), "the child sent no message"
        while_starting, while_running = ours.recv_bytes()
    finally:
        child.join(60)

    assert while_starting, f"a starting child does not set process._inheriting. {ADVICE}"
    assert not while_running, f"a running child still has process._inheriting. {ADVICE}"
    assert not privates.is_importing_main_script()


def test_a_prepared_process_is_no_longer_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[bool] = []
    keys: list[object] = []

    def prepare(data: dict[str, object]) -> None:
        marks.append(privates.is_importing_main_script())
        keys.append(data["authkey"])

    monkeypatch.setattr(spawn, "prepare", prepare)
    privates.prepare_process({"authkey": "00ff"})

    assert [True] == marks
    assert [b"\x00\xff"] == keys
    assert not hasattr(process.current_process(), "_inheriting")


def test_no_other_module_names_them() -> None:
    files = (PROJECT / "src").rglob("*.py")
    found = {file.name for file in files if PRIVATE.search(file.read_text())}

    assert {"multiprocessing_privates.py"} == found
