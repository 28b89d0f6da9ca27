"""The agent's own interpreter: it loads nothing of the image that it is started in."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tidebox.runtime.shared import tools

MAPPED = "print(*{line.split(None, 5)[5].strip() for line in open('/proc/self/maps') if '/' in line}, sep='\\n')"


def test_everything_that_it_maps_is_its_own(tmp_path: Path) -> None:
    with tarfile.open(fileobj=BytesIO(tools.collect_here())) as archive:
        # Ours, and not a stranger's; Pythons differ in what they ask for by default.
        archive.extraction_filter = lambda member, path: member
        archive.extractall(tmp_path)
    assert b"/etc/ld.so.preload" not in (tmp_path / "ld.so").read_bytes()
    start = [str(tmp_path / "ld.so"), "--library-path", str(tmp_path / "lib"), str(tmp_path / "bin/python3")]
    code = f"from {tools.MODULE} import main\n{MAPPED}"
    found = subprocess.run(
        [*start, "-I", "-S", "-B", "-c", code], env=tools.ENVIRONMENT, capture_output=True, text=True, check=True
    )
    mapped = found.stdout.split()
    assert len(mapped) > 3
    assert [path for path in mapped if not path.startswith(f"{tmp_path}/")] == []
