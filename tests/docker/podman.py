"""A private Podman for tests, by its Docker API: a real one, with directories and a socket of its own."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.docker.daemon import answers, make_image
from tests.docker.daemon import missing as docker_missing
from tests.patience import patient

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_CONFIGURATION = """
[network]
network_backend = "cni"
network_config_dir = "{directory}/cni"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
"""


def missing() -> str | None:
    """What keeps this machine from running one."""
    if shutil.which("podman", path=_PATH) is None:
        return "Podman is not installed here (make test-runtimes does it)"
    return docker_missing()


@contextlib.contextmanager
def running(images: Sequence[str]) -> Iterator[Path]:
    """The socket of one for as long as the context lasts; it has these images for tests."""
    directory = Path(tempfile.mkdtemp(prefix="tidebox-podman-"))
    socket = directory / "podman.sock"
    for name in ("cni", "root", "run", "tmp"):
        (directory / name).mkdir()
    (directory / "containers.conf").write_text(_CONFIGURATION.format(directory=directory))
    words = ["podman", f"--root={directory}/root", f"--runroot={directory}/run", f"--tmpdir={directory}/tmp"]
    words += ["--storage-driver=overlay", "--cgroup-manager=cgroupfs"]
    environment = {"PATH": _PATH, "HOME": str(directory), "CONTAINERS_CONF": f"{directory}/containers.conf"}
    with (directory / "log").open("wb") as log:
        service = subprocess.Popen(
            [*words, "system", "service", "--time=0", f"unix://{socket}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # Where what runs containers for it leaves a note of one that ran out of memory.
            cwd=directory,
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    try:
        deadline = time.monotonic() + patient(60)
        while not answers(socket):
            assert service.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.02)
        for image in images:
            make_image(socket, image)
        yield socket
    finally:
        service.terminate()
        service.wait()
        subprocess.run([*words, "system", "reset", "--force"], env=environment, check=True, capture_output=True)
        shutil.rmtree(directory)
