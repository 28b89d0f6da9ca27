"""Machines with other mounts than ours: what boxes see of them, and what they do not.

Each test changes the mounts in a mount namespace of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.boxes import ROOT, is_root
from tests.patience import PATIENCE, VARIABLE, patient

pytestmark = pytest.mark.skipif(not is_root(), reason="only root can mount")

TIDEBOX = str(Path(sys.executable).parent / "tidebox")
# Mounts in it, or on it, and the whole of it can be hidden: nothing that runs here needs them.
DIRECTORY, FILE = "/usr/games", "/usr/share/common-licenses/BSD"
AS_USER = """
import sys
from tests.boxes import as_user
from tests.cli.test_machines import MAIN
done = as_user([*MAIN, "run", "-c", sys.argv[1]], allow_weak_isolation=True, timeout=50)
sys.stdout.write(done.stdout)
sys.stderr.write(done.stderr)
sys.exit(done.returncode)
"""


def after(mounts: str, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command where these shell lines changed the mounts."""
    script = f'set -e\n{mounts}\nexec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command],
        cwd=ROOT,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            VARIABLE: str(PATIENCE),
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


def on_directory() -> str:
    return f"mkdir -p {DIRECTORY}; mount -t tmpfs tmpfs {DIRECTORY}; echo mounted > {DIRECTORY}/file"


def test_what_is_mounted_on_a_system_directory_is_seen() -> None:
    done = after(on_directory(), TIDEBOX, "run", "-c", f"print(open('{DIRECTORY}/file').read())")
    assert done.stdout.startswith("mounted"), done.stderr


def test_what_is_mounted_on_a_file_hides_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mounted")
    mounts = f"mount --bind {tmp_path}/other {FILE}"
    done = after(mounts, TIDEBOX, "run", "-c", f"print(open('{FILE}').read())")
    assert done.stdout == "mounted\n", done.stderr


def test_what_is_mounted_on_a_system_directory_is_seen_without_root() -> None:
    program = f"print(open('{DIRECTORY}/file').read())"
    done = after(on_directory(), sys.executable, "-c", AS_USER, program)
    assert done.stdout.startswith("mounted"), done.stderr


def stacked(tmp_path: Path) -> str:
    """As many overlays on a system directory as the kernel allows."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return "\n".join(
        f"mount -t overlay overlay -o lowerdir={tmp_path}/{name}:/usr /usr" for name in ("first", "second")
    )


def test_boxes_without_overlays_are_refused_unless_the_operator_accepts_them(tmp_path: Path) -> None:
    mounts = stacked(tmp_path)
    refused = after(mounts, TIDEBOX, "run", "-c", "print(1)")
    assert refused.stderr.startswith("tidebox: locks and watches on files of the image would be shared")
    accepted = after(mounts, TIDEBOX, "run", "-c", "print(1)", SANDBOX_ALLOW_WEAK_ISOLATION="1")
    assert accepted.stdout == "1\n", accepted.stderr
    assert accepted.stderr == "tidebox: weak isolation: not enforced here: private_files\n"


def test_what_only_root_may_read_in_etc_is_in_no_box() -> None:
    directory = "/etc/fonts"
    mounts = f"""mkdir -p {directory}; mount -t tmpfs tmpfs {directory}
    for name in open closed; do mkdir {directory}/$name; echo $name > {directory}/$name/file; done
    chmod 700 {directory}/closed; echo key > {directory}/open/key; chmod 640 {directory}/open/key"""
    program = f"import os; print(sorted(name for _, _, names in os.walk('{directory}') for name in names))"
    done = after(mounts, TIDEBOX, "run", "-c", program)
    assert done.stdout == "['file']\n", done.stdout + done.stderr
