"""The image store: names, digests, imports from archives and OCI layouts, and what a failure leaves."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.unit.untrusted_files.archives import ARCHITECTURE, OciLayout, directory, file, special, symlink, tar
from tidebox.errors import InvalidImage, InvalidRequest, RuntimeUnavailable, UnknownImage
from tidebox.runtime.images import MOUNT_POINTS, Image, ImageStore
from tidebox.runtime.unpack import UnpackLimits

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FILES = [
    directory("etc"),
    file("etc/os-release", b"ID=test\n"),
    file("bin/sh", b"#!", mode=0o4755),
    symlink("s", "/etc"),
]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rootfs.tar"
    path.write_bytes(tar(FILES))
    return path


@pytest.fixture
def layout(tmp_path: Path) -> OciLayout:
    return OciLayout(tmp_path / "layout")


def contents(store: ImageStore) -> list[str]:
    """All that the store keeps, below its fixed directories."""
    root = store._root
    kept = [path for path in (*root.glob("staging-*"), *root.glob("names/*"), *root.glob("rootfs/*"))]
    return sorted(path.relative_to(root).as_posix() for path in kept)


def rootfs_of(image: Image) -> Path:
    assert image.rootfs is not None
    return image.rootfs


class TestNames:
    @pytest.mark.parametrize("name", ["host", "python:3.12", "python", "node:20", "busybox", "debian:12", "alpine:3"])
    def test_the_host_and_its_aliases(self, store: ImageStore, name: str) -> None:
        image = store.resolve(name)
        assert (image.name, image.rootfs) == ("host", None)
        assert image.digest == store.resolve("host").digest
        assert image.digest.startswith("sha256:")

    @pytest.mark.parametrize(
        "name", ["nothing", "pythonic:3", "", "../etc", "a" * 1000, "host:1", "x\0y", "Python:3\n"]
    )
    def test_unknown_names(self, store: ImageStore, name: str) -> None:
        with pytest.raises(UnknownImage):
            store.resolve(name)
        with pytest.raises(UnknownImage):
            store.remove(name)

    @pytest.mark.parametrize(
        "name", ["", "host", "..", ".", "/etc", "a//", "UPPER", "-x", "a b", "a:", "a:b:c", "a\n", "a" * 129, "é"]
    )
    def test_names_that_cannot_be_imported(self, store: ImageStore, source: Path, name: str) -> None:
        with pytest.raises(InvalidRequest):
            store.import_(name, source)
        assert contents(store) == []

    def test_an_imported_image_goes_before_the_alias(self, store: ImageStore, source: Path) -> None:
        store.import_("python:3.12", source)
        assert store.resolve("python:3.12").rootfs is not None
        assert store.resolve("python:3.13").rootfs is None

    def test_list_and_remove(self, store: ImageStore, source: Path) -> None:
        assert store.list() == []
        store.import_("my/app:1.0", source)
        store.import_("busybox", source)
        assert [image.name for image in store.list()] == ["busybox", "my/app:1.0"]
        store.remove("my/app:1.0")
        assert store.resolve("busybox") == store.list()[0]
        store.remove("busybox")
        assert contents(store) == []


class TestArchives:
    @pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd.compress])
    def test_any_packing_gives_the_same_image(self, store: ImageStore, source: Path, compress: type[bytes]) -> None:
        plain = store.import_("plain", source)
        source.write_bytes(compress(tar(FILES, tarfile.GNU_FORMAT)))
        packed = store.import_("packed", source)
        assert (packed.digest, packed.rootfs) == (plain.digest, plain.rootfs)
        assert len(list(store._shelf.place.iterdir())) == 1

    def test_files_and_mount_points(self, store: ImageStore, source: Path) -> None:
        image = store.import_("test", source)
        root = rootfs_of(image)
        assert (root / "etc/os-release").read_text() == "ID=test\n"
        assert (root / "bin/sh").stat().st_mode & 0o7777 == 0o755
        assert image.size == 10
        for name in MOUNT_POINTS:
            assert os.listdir(root / name) == []
            assert (root / name).stat().st_mode & 0o777 == 0o755

    @pytest.mark.parametrize("name", MOUNT_POINTS)
    def test_mount_points_are_real_directories(
        self, store: ImageStore, tmp_path: Path, source: Path, name: str
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "victim").touch()
        for hostile in (symlink(name, str(outside)), file(name, b"x"), file(name + "/full", b"x")):
            source.write_bytes(tar([*FILES, hostile]))
            root = rootfs_of(store.import_("test", source))
            assert not (root / name).is_symlink()
            assert os.listdir(root / name) == []
        assert os.listdir(outside) == ["victim"]

    @pytest.mark.parametrize(
        "change",
        [
            file("etc/os-release", b"ID=Test\n"),
            file("etc/os-release", b"ID=test\n", mode=0o600),
            file("etc/os-release", b"ID=test\n", mtime=1),
            symlink("s", "/usr"),
            file("added"),
            directory("etc", mode=0o700),
        ],
    )
    def test_the_digest_tells_every_difference(
        self, store: ImageStore, source: Path, change: tuple[tarfile.TarInfo, bytes]
    ) -> None:
        before = store.import_("test", source)
        source.write_bytes(tar([*FILES, change]))
        assert store.import_("test", source).digest != before.digest
        assert len(contents(store)) == 2, "the replaced image is gone"

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"garbage" * 1000,
            tar([]),
            tar([file("../evil", b"")]),
            tar([*FILES, file("big", bytes(2 << 20))]),
            tar([special("null", tarfile.CHRTYPE)]),
            tar(FILES)[:1300],
            gzip.compress(tar(FILES))[:-20],
            tar([file("manifest.json", b"[]"), file("layer.tar", b"")]),
        ],
    )
    def test_a_failure_leaves_nothing(self, tmp_path: Path, source: Path, content: bytes) -> None:
        store = ImageStore(tmp_path / "images", UnpackLimits(max_bytes=1 << 20, max_entries=100))
        source.write_bytes(content)
        with pytest.raises(InvalidImage):
            store.import_("test", source)
        assert contents(store) == []

    def test_a_source_that_cannot_be_read(self, store: ImageStore, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="cannot read"):
            store.import_("test", tmp_path / "missing")

    def test_a_pipe(self, store: ImageStore, source: Path) -> None:
        with subprocess.Popen(["cat", source], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            image = store.import_("test", Path(f"/proc/self/fd/{process.stdout.fileno()}"))
        assert image.size == 10


class TestSharing:
    def test_a_killed_import_is_swept_by_the_next(self, store: ImageStore, source: Path, tmp_path: Path) -> None:
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        script = (
            "import sys; from pathlib import Path; from tidebox.runtime.images import ImageStore;"
            "ImageStore(Path(sys.argv[1])).import_('slow', Path(sys.argv[2]))"
        )
        with subprocess.Popen([sys.executable, "-c", script, store._root, fifo]) as process:
            with fifo.open("wb", buffering=0) as writer:
                writer.write(tar(FILES)[:1024])
                deadline = time.monotonic() + 30
                while not list(store._root.glob("staging-*/rootfs")) and time.monotonic() < deadline:
                    time.sleep(0.01)
                store.import_("quick", source)
                assert len(list(store._root.glob("staging-*"))) == 1, "an import under way was disturbed"
                process.kill()
                process.wait()
        store.import_("another", source)
        assert not list(store._root.glob("staging-*"))

    def test_files_in_use_outlive_their_name(self, store: ImageStore, source: Path) -> None:
        image = store.import_("test", source)
        held = store.hold(image)
        store.remove("test")
        assert (rootfs_of(image) / "etc/os-release").exists()
        for descriptor in held:
            os.close(descriptor)
        with pytest.raises(UnknownImage):
            store.remove("test")
        source.write_bytes(tar([*FILES, file("other")]))
        store.import_("other", source)
        assert not rootfs_of(image).exists()
        with pytest.raises(UnknownImage):
            store.hold(image)

    def test_the_host_can_be_held_too(self, store: ImageStore) -> None:
        assert store.hold(store.resolve("host")) == ()

    @pytest.mark.parametrize("damage", ["", "[]", "{}", '{"name": 1}', "\udcff"])
    def test_a_damaged_record_is_named(self, store: ImageStore, source: Path, damage: str) -> None:
        store.import_("test", source)
        (store._names / "test.json").write_text(damage, errors="surrogateescape")
        with pytest.raises(InvalidImage, match=r"test\.json"):
            store.resolve("test")
        store.import_("test", source)
        assert store.resolve("test").size == 10


class TestLayouts:
    def test_layers_one_over_the_other(self, store: ImageStore, layout: OciLayout) -> None:
        lower = tar([file("a/old", b"1"), file("a/gone", b"2"), file("keep", b"3")])
        middle = tar([file("a/.wh.gone"), file("keep", b"4")])
        upper = zstd.compress(tar([file("a/.wh..wh..opq"), file("a/new", b"5")]))
        layout.index(layout.manifest([lower, middle, upper]))
        root = rootfs_of(store.import_("test", layout.root))
        assert (root / "keep").read_text() == "4"
        assert os.listdir(root / "a") == ["new"]

    def test_a_layout_in_an_archive(self, store: ImageStore, layout: OciLayout, tmp_path: Path) -> None:
        layout.index(layout.manifest([tar(FILES)]))
        packed = tmp_path / "layout.tar.gz"
        packed.write_bytes(gzip.compress(layout.as_tar()))
        assert store.import_("packed", packed).digest == store.import_("plain", layout.root).digest

    def test_the_image_for_this_machine_is_chosen(self, store: ImageStore, layout: OciLayout) -> None:
        index = {
            "manifests": [
                layout.manifest([tar([file("wrong")])], "vax", platform={"os": "linux", "architecture": "vax"}),
                layout.manifest([tar([file("right")])], platform={"os": "linux", "architecture": ARCHITECTURE}),
                layout.manifest([tar([file("note")])], platform={"os": "unknown", "architecture": "unknown"}),
            ]
        }
        layout.index(layout.document(index, "application/vnd.oci.image.index.v1+json"))
        assert (rootfs_of(store.import_("test", layout.root)) / "right").exists()

    def test_an_image_for_another_machine_is_refused(self, store: ImageStore, layout: OciLayout) -> None:
        layout.index(layout.manifest([tar(FILES)], "vax"))
        with pytest.raises(InvalidImage, match=f"no image for linux/{ARCHITECTURE}"):
            store.import_("test", layout.root)

    def test_several_images_are_refused(self, store: ImageStore, layout: OciLayout) -> None:
        layout.index(layout.manifest([tar(FILES)]), layout.manifest([tar([file("other")])]))
        with pytest.raises(InvalidImage, match="2 images"):
            store.import_("test", layout.root)

    def test_a_layer_with_the_wrong_content_is_refused(self, store: ImageStore, layout: OciLayout) -> None:
        layout.index(layout.manifest([tar(FILES)]))
        [layer] = [path for path in layout.root.glob("blobs/*/*") if path.read_bytes()[:2] == b"\x1f\x8b"]
        content = gzip.compress(tar([file("evil")]), mtime=1)
        for forged in (content, content.ljust(layer.stat().st_size, b"\0"), layer.read_bytes() + b"more"):
            layer.write_bytes(forged)
            with pytest.raises(InvalidImage, match=r"blob|decompressed"):
                store.import_("test", layout.root)
        assert contents(store) == []

    def test_a_manifest_with_the_wrong_content_is_refused(self, store: ImageStore, layout: OciLayout) -> None:
        manifest = layout.manifest([tar(FILES)])
        layout.index({**manifest, "digest": "sha256:" + "0" * 64})
        (layout.root / "blobs/sha256" / ("0" * 64)).write_bytes(b"{}")
        with pytest.raises(InvalidImage, match="blob"):
            store.import_("test", layout.root)

    @pytest.mark.parametrize(
        "digest",
        ["sha256:../../../../etc/passwd", "sha256:" + "0" * 63, "md5:" + "0" * 32, "", None, "sha256:" + "0" * 64],
    )
    def test_crafted_digests_are_refused(self, store: ImageStore, layout: OciLayout, digest: str | None) -> None:
        layout.index({**layout.manifest([tar(FILES)]), "digest": digest})
        with pytest.raises(InvalidImage):
            store.import_("test", layout.root)

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"manifests": 1}', '{"manifests": [1]}', "[" * 100_000, "\0"])
    def test_crafted_indexes_are_refused(self, store: ImageStore, layout: OciLayout, content: str) -> None:
        (layout.root / "index.json").write_text(content)
        with pytest.raises(InvalidImage):
            store.import_("test", layout.root)

    def test_an_index_within_itself_ends(self, store: ImageStore, layout: OciLayout) -> None:
        nested = layout.document({"manifests": []}, "application/vnd.oci.image.index.v1+json")
        for _ in range(20):
            nested = layout.document({"manifests": [nested, nested]}, "application/vnd.oci.image.index.v1+json")
        layout.index(nested)
        with pytest.raises(InvalidImage, match="no image"):
            store.import_("test", layout.root)

    def test_indexes_that_name_each_other_again_and_again_are_refused(
        self, store: ImageStore, layout: OciLayout
    ) -> None:
        kind = "application/vnd.oci.image.index.v1+json"
        nested = layout.document({"manifests": []}, kind)
        for _ in range(3):
            nested = layout.document({"manifests": [nested] * 30}, kind)
        layout.index(nested)
        with pytest.raises(InvalidImage, match="too many documents"):
            store.import_("test", layout.root)

    def test_large_documents_are_bounded_together(self, store: ImageStore, layout: OciLayout) -> None:
        kind = "application/vnd.oci.image.index.v1+json"
        large = [layout.document({"manifests": [], "x": f"{number}" * (3 << 19)}, kind) for number in range(10, 13)]
        layout.index(*large * 4)
        with pytest.raises(InvalidImage, match="too many documents"):
            store.import_("test", layout.root)

    @pytest.mark.parametrize("planted", ["index.json", "blobs", "blobs/sha256"])
    def test_links_in_a_layout_are_not_followed(self, store: ImageStore, layout: OciLayout, planted: str) -> None:
        layout.index(layout.manifest([tar(FILES)]))
        path = layout.root / planted
        path.rename(layout.root.parent / "moved")
        path.symlink_to(layout.root.parent / "moved")
        with pytest.raises(InvalidImage, match="cannot be opened"):
            store.import_("test", layout.root)

    def test_a_fifo_in_a_layout_does_not_hang(self, store: ImageStore, layout: OciLayout) -> None:
        os.mkfifo(layout.root / "index.json")
        with pytest.raises(InvalidImage, match="not a file"):
            store.import_("test", layout.root)

    def test_layers_that_are_no_archives_are_refused(self, store: ImageStore, layout: OciLayout) -> None:
        manifest = layout.manifest([])
        stored = json.loads((layout.root / "blobs/sha256" / manifest["digest"].partition(":")[2]).read_bytes())
        stored["layers"] = [layout.blob(b"{}", "application/vnd.in-toto+json")]
        layout.index(layout.document(stored, manifest["mediaType"]))
        with pytest.raises(InvalidImage, match="not a tar archive"):
            store.import_("test", layout.root)

    def test_a_directory_that_is_no_layout(self, store: ImageStore, tmp_path: Path) -> None:
        with pytest.raises(InvalidImage, match=r"index\.json"):
            store.import_("test", tmp_path)


class TestBuild:
    @pytest.mark.parametrize(
        ("packages", "suite"),
        [
            (["--hook"], "bookworm"),
            (["a,b"], "bookworm"),
            (["Python"], "bookworm"),
            ([], "--help"),
            ([], "a/b"),
            ([], ""),
        ],
    )
    def test_crafted_arguments_are_refused(self, store: ImageStore, packages: list[str], suite: str) -> None:
        with pytest.raises(InvalidRequest):
            store.build("test", packages, suite)

    def test_without_mmdebstrap_the_command_that_helps_is_named(
        self, store: ImageStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: None)
        with pytest.raises(RuntimeUnavailable, match="apt-get install -y mmdebstrap"):
            store.build("test", ["python3"], "bookworm")

    def test_what_mmdebstrap_makes_is_imported(
        self, store: ImageStore, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program = tmp_path / "mmdebstrap"
        program.write_text(
            f'#!/bin/sh\n[ "$*" = "$0" ] || echo "$@" >{tmp_path}/args\nfor last; do :; done\ncp {source} "$last"\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        assert store.build("test", ["python3", "git"], "bookworm").size == 10
        arguments = (tmp_path / "args").read_text().split()
        assert arguments[:-1] == ["--variant=minbase", "--format=tar", "--include=python3,git", "--", "bookworm"]
        program.write_text("#!/bin/sh\nexit 25\n")
        with pytest.raises(InvalidImage, match="25"):
            store.build("other", [], "bookworm")
        assert len(contents(store)) == 2
