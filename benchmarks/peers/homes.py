"""An environment for each peer, so that no peer's needs decide another's versions; made once and kept."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from benchmarks.peers.catalogue import Peer

PROGRAMS: Final = Path(__file__).parent / "programs"
NODE_AT_LEAST: Final = 20


class NotRun(Exception):
    """A peer that cannot run here; its words say why."""


class Home:
    """Where a peer's packages are, and how its program is called there."""

    def __init__(self, place: Path, peer: Peer) -> None:
        """Name the folder; nothing is made yet."""
        digest = hashlib.sha256("\n".join(peer.needs).encode()).hexdigest()[:8]
        self.folder = place / f"{peer.name.split(',')[0]}-{digest}".replace(" ", "-")
        self._peer = peer

    def command(self, verb: str, count: int) -> list[str]:
        """Return the words that start the program."""
        words = [str(PROGRAMS / self._peer.program), verb, str(count)]
        if self._peer.runtime == "ours":
            return [sys.executable, *words]
        if self._peer.runtime == "python":
            return [str(self.folder / "bin" / "python"), *words]
        # A module finds its packages beside itself, so the programs are copied to where they are.
        words[0] = str(self.folder / self._peer.program)
        return ["node", *words]

    def make(self) -> None:
        """Install what the program needs, unless it is there. Raises NotRun."""
        if self._peer.runtime == "node":
            self._make_for_node()
        elif self._peer.runtime == "python" and not self._made():
            venv.create(self.folder, with_pip=True, clear=True)
            self._install(
                [str(self.folder / "bin" / "python"), "-m", "pip", "install", "-q", *self._peer.needs]
            )

    def _make_for_node(self) -> None:
        found = shutil.which("node")
        version = (
            subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
            if found
            else ""
        )
        if not found or int(version.strip().removeprefix("v").partition(".")[0]) < NODE_AT_LEAST:
            raise NotRun(f"needs Node {NODE_AT_LEAST} or newer; found {version.strip() or 'none'}")
        if not self._made():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._install(
                ["npm", "install", "--silent", "--no-fund", "--prefix", str(self.folder), *self._peer.needs]
            )
        for program in PROGRAMS.glob("*.mjs"):
            shutil.copy(program, self.folder)

    def _made(self) -> bool:
        return (self.folder / "made").exists()

    def _install(self, words: list[str]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()
            raise NotRun(f"cannot be installed: {told[-1] if told else done.returncode}")
        (self.folder / "made").touch()
