"""A separate environment for each peer, so that the requirements of one peer cannot change the versions of
another.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from attrs import define

from benchmarks.peers.systems import Peer

PROGRAMS: Final = Path(__file__).parent / "programs"
MIN_NODE: Final = 20


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
        return self.root / f"{self.peer.name.split(',')[0]}-{digest}".replace(" ", "-")

    def command(self, step: str, count: int) -> list[str]:
        """Return the command that runs one step of the program, with `count` jobs."""
        arguments = [str(PROGRAMS / self.peer.program), step, str(count)]
        if self.peer.runtime == "dibs":
            return [sys.executable, *arguments]
        if self.peer.runtime == "python":
            return [str(self.folder / "bin" / "python"), *arguments]
        # Node looks for packages in the folder of the program, so `install` copies the programs there.
        arguments[0] = str(self.folder / self.peer.program)
        return ["node", *arguments]

    def install(self) -> None:
        """Install the requirements, unless they are installed. Raises PeerUnavailable."""
        if self.peer.runtime == "node":
            self._install_on_node()
        elif self.peer.runtime == "python" and not self._is_installed():
            venv.create(self.folder, with_pip=True, clear=True)
            python = str(self.folder / "bin" / "python")
            self._run_installer([python, "-m", "pip", "install", "-q", *self.peer.requirements])

    def _install_on_node(self) -> None:
        version = node_version()
        if not version or int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
            raise PeerUnavailable(f"needs Node {MIN_NODE} or newer; found {version or 'none'}")
        if not self._is_installed():
            self.folder.mkdir(parents=True, exist_ok=True)
            npm = ["npm", "install", "--silent", "--no-fund", "--prefix", str(self.folder)]
            self._run_installer([*npm, *self.peer.requirements])
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, self.folder)

    def _is_installed(self) -> bool:
        return (self.folder / "made").exists()

    def _run_installer(self, command: list[str]) -> None:
        installer = subprocess.run(command, capture_output=True, text=True, check=False)
        if installer.returncode:
            lines = (installer.stderr or installer.stdout).strip().splitlines()
            raise PeerUnavailable(f"cannot be installed: {lines[-1] if lines else installer.returncode}")
        (self.folder / "made").touch()


def node_version() -> str:
    """Return the version of Node, such as "v20.1.0", or "" if Node is not installed."""
    node = shutil.which("node")
    if node is None:
        return ""
    return subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
