"""Images with a configuration that no build makes, and files that lead whatever is started or mounted in them."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from tests.boxes import BoxRunner
from tests.docker.daemon import ask
from tests.docker.images import BUSYBOX_IMAGE, write_image
from tidebox.errors import InvalidImage
from tidebox.model.result import Outcome

ENDS_PID_1 = """
#include <unistd.h>
__attribute__((constructor)) static void end(void) { if (getpid() == 1) _exit(77); }
"""
Load = Callable[..., str]


def write_saved(
    target: IO[bytes],
    name: str,
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    links: Mapping[str, str],
) -> None:
    """Write an image as engines save them: that of BusyBox with these files, links and configuration."""
    layer = io.BytesIO()
    with tempfile.TemporaryFile() as base:
        write_image(BUSYBOX_IMAGE, base)
        base.seek(0)
        with tarfile.open(fileobj=base) as source, tarfile.open(fileobj=layer, mode="w") as tar:
            for member in source:
                if member.name not in links:
                    tar.addfile(member, source.extractfile(member) if member.isfile() else None)
            for path, content in files.items():
                _add(tar, path, content)
            for path, place in links.items():
                link = tarfile.TarInfo(path)
                link.type, link.linkname = tarfile.SYMTYPE, place
                tar.addfile(link)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin"], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(fileobj=target, mode="w") as tar:
        _add(tar, "config.json", json.dumps(described).encode())
        _add(tar, "layer.tar", layer.getvalue())
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    target.seek(0)


def _add(tar: tarfile.TarFile, path: str, content: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), 0o755
    tar.addfile(member, io.BytesIO(content))


@pytest.fixture
def load(docker_host: str, request: pytest.FixtureRequest) -> Iterator[Load]:
    """Gives the engine such an image for one test."""
    socket = Path(docker_host.removeprefix("unix://"))
    name = f"hostile:{hashlib.sha256(request.node.name.encode()).hexdigest()[:16]}"

    def load(config: Mapping[str, Any] = {}, *, files: Mapping[str, bytes] = {}, links: Mapping[str, str] = {}) -> str:
        with tempfile.TemporaryFile() as archive:
            write_saved(archive, name, config, files, links)
            said = ask(socket, "POST", "/images/load", archive)
        assert b"errorDetail" not in said, said
        return name

    yield load
    ask(socket, "DELETE", f"/images/{name}?force=1")


@pytest.mark.parametrize("volume", ["/data/", "//data", "/data"])
def test_a_volume_of_an_image_has_a_size_however_it_is_spelled(
    docker_runner: BoxRunner, load: Load, volume: str
) -> None:
    image = load({"Volumes": {volume: {}}})
    result = docker_runner(command=["grep", " /data ", "/proc/mounts"], image=image)
    kind, _, system, options = result.stdout.decode().split()[:4]
    assert (kind, system) == ("tmpfs", "tmpfs")
    assert {"nosuid", "nodev", "noexec", "size=1024k"} <= set(options.split(","))


@pytest.mark.parametrize(
    "volume", ["data", "/.tidebox/lib", "/workspace/../.tidebox", "/sys/fs/cgroup", "/proc", "/dev", "/", "."]
)
def test_no_volume_of_an_image_covers_what_is_ours(docker_runner: BoxRunner, load: Load, volume: str) -> None:
    with pytest.raises(InvalidImage, match="volume"):
        docker_runner(command=["true"], image=load({"Volumes": {volume: {}}}))


@pytest.mark.parametrize(
    ("place", "target"),
    [("tmp", "/sys/fs/cgroup/memory"), ("tmp", "/.tidebox/lib"), ("workspace", "/proc/self"), (".tidebox", "/etc")],
)
def test_nothing_is_mounted_where_a_link_of_an_image_leads(
    docker_runner: BoxRunner, load: Load, place: str, target: str
) -> None:
    with pytest.raises(InvalidImage, match=f"/{place} is a symbolic link"):
        docker_runner(command=["true"], image=load(links={place: target}))


def test_no_library_of_an_image_is_loaded_into_the_agent(docker_runner: BoxRunner, load: Load, tmp_path: Path) -> None:
    (tmp_path / "end.c").write_text(ENDS_PID_1)
    library = tmp_path / "end.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "end.c"], check=True)
    image = load(files={"etc/ld.so.preload": b"/end.so\n", "end.so": library.read_bytes()})
    result = docker_runner(command=["echo", "served"], image=image)
    assert (result.outcome, result.stdout) == (Outcome.EXITED, b"served\n")


def test_an_environment_that_no_program_could_be_started_with_is_refused(docker_runner: BoxRunner, load: Load) -> None:
    with pytest.raises(InvalidImage, match="environment"):
        docker_runner(command=["true"], image=load({"Env": [f"V{number}=x" for number in range(5000)]}))
