"""A private Docker daemon for tests: a real one, with directories and a socket of its own, and no network."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from tests.docker.images import BUSYBOX_IMAGE, IMAGES, NEEDED, changes_of, write_image
from tests.patience import patient

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("dockerd", "containerd", "runc")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """What keeps this machine from running one."""
    absent = [name for name in (*_PROGRAMS, *NEEDED) if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"Docker's daemon and images need what is not installed here: {', '.join(absent)} (make test does it)"
    if os.geteuid() != 0:
        return "a Docker daemon of their own needs root"
    with open("/proc/filesystems") as file:
        if not any(line.split()[-1] == "overlay" for line in file):
            return "this kernel has no overlay file system"
    held = _controllers()
    if lacking := {"memory", "pids", "cpu"} - held:
        return f"a Docker daemon needs the cgroup controllers {', '.join(sorted(lacking))}, which are not mounted here"
    return None


def _controllers() -> set[str]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists():
        return set(unified.read_text().split())
    return {name for name in os.listdir("/sys/fs/cgroup") if os.path.ismount(f"/sys/fs/cgroup/{name}")}


class Daemon:
    """One daemon in a directory; it must be stopped."""

    def __init__(
        self, directory: Path, disk: str | None = None, runtimes: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """``disk`` is the size of the one that it has for itself, where it has one; ``runtimes`` are the
        commands of further OCI runtimes, by name."""
        self._directory = directory
        self.data = directory / "data"
        """Where its images, volumes and containers are."""
        if disk is not None:
            self.data.mkdir()
            words = ["mount", "-t", "tmpfs", "-o", f"size={disk}", "tmpfs", str(self.data)]
            subprocess.run(words, check=True)
        # Not a name that spawners take for that of a dead one of theirs.
        self._cgroup = f"docker-tests-{os.getpid()}-{directory.stat().st_ino}"
        named = {name: {"path": words[0], "runtimeArgs": words[1:]} for name, words in (runtimes or {}).items()}
        (directory / "daemon.json").write_text(json.dumps({"runtimes": named} if named else {}))
        self.start()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._directory / "docker.sock"

    @property
    def host(self) -> str:
        """The same as clients are told it."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {
            "config-file": "daemon.json",
            "data-root": "data",
            "exec-root": "exec",
            "pidfile": "pid",
        }
        words = [f"--{name}={self._directory / path}" for name, path in options.items()]
        words += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--bridge=none"]
        words += [f"--cgroup-parent=/{self._cgroup}", "--shutdown-timeout=1", f"--host={self.host}"]
        log = (self._directory / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [shutil.which("dockerd", path=_PATH) or "dockerd", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": _PATH, "HOME": str(self._directory)},
                # A tester that is killed leaves no daemon behind.
                preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        deadline = time.monotonic() + patient(60)
        while not answers(self.socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise AssertionError(f"no Docker daemon can be started:\n{self.log()}")
            time.sleep(0.02)

    def log(self) -> str:
        """The last it said."""
        return (self._directory / "log").read_text(errors="replace")[-4000:]

    def make_images(self, names: Sequence[str]) -> None:
        """Give it these images for tests."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda name: make_image(self.socket, name), names))

    def containers(self, label: str | None = None) -> list[dict[str, Any]]:
        """Every container it has, running or not."""
        query = {"all": "1"} | ({"filters": json.dumps({"label": [label]})} if label else {})
        listed: list[dict[str, Any]] = json.loads(ask(self.socket, "GET", f"/containers/json?{urlencode(query)}"))
        # One that was killed in the middle of a removal lists for ever what it has no more.
        return [container for container in listed if self._has(container["Id"])]

    def _has(self, container: str) -> bool:
        try:
            ask(self.socket, "GET", f"/containers/{container}/json")
        except AssertionError:
            return False
        return True

    def volumes(self) -> list[str]:
        """The names of its volumes."""
        return [volume["Name"] for volume in json.loads(ask(self.socket, "GET", "/volumes"))["Volumes"] or ()]

    def images(self) -> list[str]:
        """The names of its images."""
        found = json.loads(ask(self.socket, "GET", "/images/json"))
        return [name for image in found for name in image["RepoTags"] or ()]

    def make_container(self) -> str:
        """A container that is nobody's."""
        body = {"Image": BUSYBOX_IMAGE, "Cmd": ["sleep", "1000"], "HostConfig": {"NetworkMode": "none"}}
        container: str = json.loads(ask(self.socket, "POST", "/containers/create", body))["Id"]
        ask(self.socket, "POST", f"/containers/{container}/start")
        return container

    def remove_container(self, container: str) -> None:
        """Remove a container, as somebody else would."""
        ask(self.socket, "DELETE", f"/containers/{container}?force=1")

    def kill(self) -> None:
        """Kill it, as if it had crashed: containers live on, and the next one takes them over."""
        helper = self._directory / "exec/containerd/containerd.pid"
        with _watched(int(helper.read_text())) as ended:
            self._process.kill()
            self._process.wait()
            # It dies with its daemon; the next one would wait in vain for what is not quite dead.
            assert select.select([ended], [], [], patient(30))[0], "containerd outlives its daemon"
        helper.unlink()

    def stop(self) -> None:
        """End it with its containers, and leave nothing of it; once is enough."""
        if not self._directory.exists():
            return
        if self._process.poll() is not None:
            self.start()
        for container in self.containers():
            ask(self.socket, "DELETE", f"/containers/{container['Id']}?force=1")
        self._process.terminate()
        self._process.wait()
        self._unmount()
        shutil.rmtree(self._directory)
        for place, _, _ in os.walk("/sys/fs/cgroup"):
            if os.path.basename(place) == self._cgroup:
                _remove_cgroup(place)

    def _unmount(self) -> None:
        with open("/proc/self/mounts") as file:
            mounted = [line.split()[1] for line in file]
        for place in reversed(mounted):
            if place.startswith(f"{self._directory}/"):
                subprocess.run(["umount", "-l", place], check=True)


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[int]:
    """A descriptor that can be read once the process is over."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_cgroup(path: str) -> None:
    for place, _, _ in os.walk(path, topdown=False):
        os.rmdir(place)


def make_image(path: Path, name: str) -> None:
    """Give the daemon at a socket an image for tests."""
    query = [("fromSrc", "-"), ("repo", name)]
    query += [("changes", change) for change in changes_of(name)]
    with tempfile.TemporaryFile(dir=path.parent) as archive:
        write_image(name, archive)
        archive.seek(0)
        said = ask(path, "POST", f"/images/create?{urlencode(query)}", archive)
    assert said.strip().splitlines()[-1].find(b"error") < 0, said


def answers(path: Path) -> bool:
    """Whether a daemon listens there."""
    try:
        return ask(path, "GET", "/_ping") == b"OK"
    except (OSError, http.client.HTTPException):
        return False


def ask(path: Path, method: str, target: str, body: IO[bytes] | dict[str, Any] | None = None) -> bytes:
    """The answer of the daemon at a socket to one request; what it refuses is an AssertionError."""
    connection = UnixConnection(path)
    with contextlib.closing(connection):
        if isinstance(body, dict):
            connection.request(method, target, json.dumps(body), {"Content-Type": "application/json"})
        elif body is not None:
            size = os.fstat(body.fileno()).st_size
            # Who is refused over it hears why.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, target, body, {"Content-Length": str(size)})
        else:
            connection.request(method, target)
        answer = connection.getresponse()
        content = answer.read()
    assert answer.status < 400, f"{method} {target}: {answer.status} {content!r}"
    return content


class UnixConnection(http.client.HTTPConnection):
    """Speaks HTTP over the socket of a daemon."""

    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=patient(60))
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextlib.contextmanager
def running(
    images: Sequence[str] = IMAGES, disk: str | None = None, runtimes: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Daemon]:
    """A daemon for as long as the context lasts, on a disk of its own of that size or the machine's."""
    # Not pytest's directory: a socket's path is short.
    daemon = Daemon(Path(tempfile.mkdtemp(prefix="tidebox-docker-")), disk, runtimes)
    try:
        daemon.make_images(images)
        yield daemon
    finally:
        daemon.stop()
