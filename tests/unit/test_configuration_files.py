"""Which configuration of packages a box sees: what they brought, byte for byte, and nothing about the machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidebox.runtime.native import configuration
from tidebox.spawner import steps


def _status(path: Path, files: dict[str, str]) -> Path:
    lines = "".join(f" {name} {digest}\n" for name, digest in files.items())
    path.write_text(
        f"Package: one\nStatus: install ok installed\nConffiles:\n{lines}Description: a\n b\n\nPackage: two\n"
    )
    return path


def test_what_is_as_packaged_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "_is_as_packaged", lambda path, digest: digest == "same")
    files = {
        "/etc/matplotlibrc": "same",
        "/etc/edited.conf": "other",
        "/etc/deep/er/a.conf": "same",
        "/etc/gone.conf": "same obsolete",
        "/etc/ssh/moduli": "same",
        "/etc/ssl/openssl.cnf": "same",
        "/etc/sudoers": "same",
        "/etc/default/thing": "same",
        "/opt/thing.conf": "same",
    }
    found = configuration.package_files(_status(tmp_path / "status", files))
    assert [path for path, _ in found] == ["/etc/matplotlibrc", "/etc/deep/er/a.conf"]


def test_a_machine_without_dpkg_has_none(tmp_path: Path) -> None:
    assert configuration.package_files(tmp_path / "nothing") == ()


def test_their_names_fit_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "_is_as_packaged", lambda path, digest: True)
    many = {f"/etc/thing/{number:06}.conf": "0" * 32 for number in range(5000)}
    found = configuration.package_files(_status(tmp_path / "status", many))
    assert 100 < len(found) <= configuration.MOST_FILES
    assert sum(len(path) + len(digest) for path, digest in found) <= configuration.MOST_NAMES


def _digest(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_only_what_everybody_may_read_and_nobody_edited_is_copied(tmp_path: Path) -> None:
    machine, image = tmp_path / "machine", tmp_path / "image"
    (machine / "etc").mkdir(parents=True)
    image.mkdir()
    kinds = {"plain": b"as packaged", "edited": b"password = x", "private": b"as packaged"}
    for name, content in kinds.items():
        (machine / "etc" / name).write_bytes(content)
    (machine / "etc" / "private").chmod(0o600)
    (machine / "etc" / "link").symlink_to("plain")
    listed = [[f"/etc/{name}", _digest(b"as packaged")] for name in (*kinds, "link", "nothing")]
    steps.execute([["copy_packaged", str(machine), str(image), listed]])
    assert [path.name for path in (image / "etc").iterdir()] == ["plain"]
