"""Paths of the runtime's files, below the data directory, and the sweep of those that a dead server left.

    tools-<digest>/          the agent with its interpreter, shared by all sandboxes (``runtime.shared.tools``)
    owners/<name>            locked by the server of that name for as long as it lives
    run/<name>/host/         the root of the image ``host``: what of it is not the machine's own directories
    run/<name>/state/        what runsc keeps of its sandboxes
    run/<name>/boxes/<box>/  the bundle of one sandbox

Nothing is mounted by this process: runsc mounts in a namespace that goes with the sandbox.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import io
import json
import os
import platform
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidebox.errors import ProvisionFailed
from tidebox.runtime.gvisor.bundle import Root
from tidebox.runtime.native import host
from tidebox.runtime.native.plan import host_root_plan
from tidebox.runtime.shared import tools
from tidebox.runtime.shared.owners import OwnerFile
from tidebox.spawner import steps

_TOOLS = "tools-"
# Where runsc has the sockets by which it is controlled, if the path of its own directory is too long for one.
_SOCKET_PLACES = ("/var/run", "/run", "/tmp")


class Places:
    """The files of one server."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where nothing can be written."""
        self._directory = directory
        self.owner = OwnerFile(directory)
        self._own = directory / "run" / self.owner.name
        self.state = self._own / "state"
        self._boxes = self._own / "boxes"
        for path in (self.state, self._boxes):
            path.mkdir(mode=0o700, parents=True)
        self._host: Root | None = None

    def box_name(self, number: int) -> str:
        """Return a name that no other sandbox of this machine has."""
        return f"tidebox-{self.owner.name}-{number}"

    def write_bundle(self, box: str, configuration: dict[str, Any]) -> Path:
        """The directory that runsc is given."""
        bundle = self._boxes / box
        bundle.mkdir(mode=0o700)
        (bundle / "config.json").write_text(json.dumps(configuration))
        return bundle

    def remove_box(self, box: str) -> None:
        """Remove what is left of a sandbox whose processes are dead."""
        shutil.rmtree(self._boxes / box, ignore_errors=True)
        _remove_state(self.state, box)

    # What sandboxes share

    def tools(self) -> Path:
        """The agent with its interpreter; made where it is not there yet."""
        machine = platform.machine()
        target = self._directory / (_TOOLS + tools.digest(machine))
        if target.is_dir():
            return target
        archive = tools.complete(tools.collect_here(), machine)
        staging = Path(tempfile.mkdtemp(prefix="staging-", dir=self._own))
        _unpack(archive, staging / "tools")
        with contextlib.suppress(FileExistsError, OSError):
            # Whole or not at all; another server may have been quicker.
            (staging / "tools").rename(target)
        shutil.rmtree(staging, ignore_errors=True)
        if not target.is_dir():
            raise ProvisionFailed("the agent for boxes could not be put in place", step="tools")
        return target

    def host(self, interpreters: host.Interpreters) -> Root:
        """The root of the image ``host``."""
        if self._host is None:
            facts = host.gather(interpreters)
            root = self._own / "host"
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(mode=0o755)
            try:
                steps.execute(host_root_plan(facts, str(root)))
            except steps.StepFailed as error:
                raise ProvisionFailed(f"the image host could not be made: {error}", step=error.step) from None
            self._host = Root(root, (*facts.directories, *facts.files))
        return self._host

    # What is left

    def sweep(self) -> list[str]:
        """Remove what dead servers of this data directory left; the names of those."""
        swept = []
        for path in sorted((self._directory / "run").iterdir()):
            if not self.owner.lives(path.name):
                _end_processes(path / "state")
                for leftover in glob.glob(f"{glob.escape(str(path))}/boxes/*"):
                    _remove_state(path / "state", os.path.basename(leftover))
                shutil.rmtree(path, ignore_errors=True)
                swept.append(path.name)
        for owner in self.owner.dead():
            if not (self._directory / "run" / owner).exists():
                self.owner.forget(owner)
        if len(list((self._directory / "run").iterdir())) == 1:
            # Of another version, and no other server is there that may use it.
            current = _TOOLS + tools.digest(platform.machine())
            for path in self._directory.glob(f"{_TOOLS}*"):
                if path.name != current:
                    shutil.rmtree(path, ignore_errors=True)
        return swept

    def close(self, *, nothing_left: bool) -> None:
        """Live no longer as an owner; what is left of sandboxes stays for the next server to sweep."""
        if nothing_left:
            shutil.rmtree(self._own, ignore_errors=True)
        self.owner.close(nothing_left=nothing_left)


@contextlib.contextmanager
def claiming(directory: Path) -> Iterator[None]:
    """Be the only one who makes or sweeps a server's files: one that is being made has no lock yet."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def leftovers(directory: Path) -> bool:
    """Whether there may be something to sweep, seen without becoming an owner."""
    try:
        return any((directory / "run").iterdir())
    except OSError:
        return False


def _unpack(archive: bytes, target: Path) -> None:
    """Write the files of an archive that we made ourselves: nothing but files."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            path = target / member.name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_bytes(content.read())
            # Without root, the process that opens it for the sandbox has the same user.
            path.chmod(member.mode)


def _remove_state(state: Path, box: str) -> None:
    for path in glob.glob(f"{glob.escape(str(state))}/*{box}*"):
        with contextlib.suppress(OSError):
            os.unlink(path)
    for place in _SOCKET_PLACES:
        for path in glob.glob(f"{place}/runsc-*{box}*"):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _end_processes(state: Path) -> None:
    """Kill what still works with that directory, which no living server does."""
    option = os.fsencode(f"--root={state}")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if option in (entry / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
