"""Layers in their store: how they appear, who makes one, and which go when there is no room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidebox.errors import InvalidImage, InvalidRequest, UnknownImage
from tidebox.model.packages import make_packages
from tidebox.runtime.images import Image, ImageStore, with_layers
from tidebox.runtime.layers import Layer, Lock, Locked
from tidebox.runtime.native.templates import Templates


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def a_lock(name: str, version: str = "1.0") -> Lock:
    return Lock("python", {"version": "3.11"}, (Locked(name, version, "sha256:" + "0" * 64, "http://x"),))


def make(store: ImageStore, lock: Lock, size: int = 100, used: float = 1.0) -> Layer:
    with store.layers.staging() as staging:
        (staging / "files").mkdir()
        (staging / "files" / "x.py").write_text("x" * size)
        layer = store.layers.publish(staging, lock, size)
    os.utime(layer.path.parent / "used", (used, used))
    return layer


class TestLocks:
    def test_a_digest_is_of_what_it_is_and_not_of_where_it_came_from(self) -> None:
        lock = a_lock("a")
        moved = Lock(lock.language, lock.target, (Locked("a", "1.0", "sha256:" + "0" * 64, "http://elsewhere"),))
        assert lock.digest == moved.digest
        assert len({lock.digest, a_lock("b").digest, a_lock("a", "1.1").digest}) == 3
        other = Lock("python", {"version": "3.12"}, lock.packages)
        assert other.digest != lock.digest
        assert Lock.decoded(lock.encoded()) == lock


class TestStore:
    def test_a_layer_appears_whole(self, store: ImageStore) -> None:
        lock = a_lock("a")
        assert store.layers.get(lock.digest) is None
        layer = make(store, lock)
        assert store.layers.get(lock.digest) == layer
        assert (layer.path / "x.py").exists()
        assert not list(store._root.rglob("staging-*"))

    def test_of_two_that_are_the_same_the_first_stays(self, store: ImageStore) -> None:
        first = make(store, a_lock("a"), size=10)
        second = make(store, a_lock("a"), size=20)
        assert second.size == first.size == 10

    def test_one_at_a_time_makes_a_layer(self, store: ImageStore) -> None:
        lock = a_lock("a")
        with store.layers.building(lock):
            with pytest.raises(BlockingIOError), store.layers.building(lock):
                pass
            with store.layers.building(a_lock("b")):
                pass
        with store.layers.building(lock):
            pass

    @pytest.mark.parametrize("damage", ["", "{}", '{"lock": 1, "size": 2}'])
    def test_a_damaged_layer_is_named(self, store: ImageStore, damage: str) -> None:
        layer = make(store, a_lock("a"))
        (layer.path.parent / "layer.json").write_text(damage)
        with pytest.raises(InvalidImage, match=layer.digest):
            store.layers.get(layer.digest)

    def test_notes_are_kept_for_a_while(self, store: ImageStore) -> None:
        store.layers.keep_note("k", b"v", 100)
        assert store.layers.note("k", 100) == b"v"
        os.utime(store._root / "packages" / "notes" / "k", (1, 1))
        assert store.layers.note("k", 100) is None
        store.layers.keep_note("other", b"v", 100)
        assert not (store._root / "packages" / "notes" / "k").exists()


class TestRoom:
    def test_those_not_used_the_longest_go_first(self, store: ImageStore) -> None:
        layers = [make(store, a_lock(name), used=1.0 + number) for number, name in enumerate("abcd")]
        assert {layer.digest for layer in store.prune(250)} == {layer.digest for layer in layers[:2]}
        assert [layer.path.exists() for layer in layers] == [False, False, True, True]
        assert store.prune(250) == []

    def test_use_counts_from_the_last_time_it_was_asked_for(self, store: ImageStore) -> None:
        old, new = make(store, a_lock("a"), used=1.0), make(store, a_lock("b"), used=2.0)
        store.layers.get(old.digest)
        store.prune(100)
        assert (old.path.exists(), new.path.exists()) == (True, False)

    def test_what_is_held_or_just_asked_for_stays(self, store: ImageStore) -> None:
        held, fresh = make(store, a_lock("a")), make(store, a_lock("b"))
        store.layers.get(fresh.digest)
        descriptor = store.layers.hold(held)
        assert store.prune(0) == []
        os.close(descriptor)
        assert store.prune(0) == [held]
        with pytest.raises(FileNotFoundError):
            store.layers.hold(held)

    def test_what_a_named_image_has_stays(self, store: ImageStore) -> None:
        layer = make(store, a_lock("a"))
        host = store.resolve("host")
        store.tag("data", host, with_layers(host, [layer]), make_packages(["a"]), ["a.b"])
        os.utime(layer.path.parent / "used", (1, 1))
        assert store.prune(0) == []
        store.remove("data")
        os.utime(layer.path.parent / "used", (1, 1))
        assert store.prune(0) == [layer]


class TestImages:
    def tagged(self, store: ImageStore, name: str, *layers: Layer, preload: tuple[str, ...] = ()) -> Image:
        host = store.resolve("host")
        return store.tag(name, host, with_layers(host, layers), make_packages(["a"]), preload)

    def test_a_name_and_the_digests_of_layers(self, store: ImageStore) -> None:
        layer = make(store, a_lock("a"))
        image = store.resolve(f"host+{layer.digest}")
        assert (image.name, image.rootfs, image.layers) == ("host", None, (layer,))
        assert image.digest != store.resolve("host").digest
        for name in (f"host+{'0' * 64}", "host+", "host+../..", f"nothing+{layer.digest}"):
            with pytest.raises(UnknownImage):
                store.resolve(name)

    def test_a_named_image_knows_its_base_layers_and_preloads(self, store: ImageStore) -> None:
        layer = make(store, a_lock("a"))
        image = self.tagged(store, "data", layer, preload=("a.b",))
        assert image == store.resolve("data")
        assert (image.base, image.layers, image.preload, image.size) == ("host", (layer,), ("a.b",), layer.size)
        assert image.packages == make_packages(["a"])
        others = {self.tagged(store, "other", layer).digest, self.tagged(store, "third", preload=("a",)).digest}
        assert len({image.digest, store.resolve("host").digest, *others}) == 4

    def test_a_layer_takes_the_place_of_the_one_before_it(self, store: ImageStore) -> None:
        old, new = make(store, a_lock("a")), make(store, a_lock("a", "2.0"), size=30)
        self.tagged(store, "data", old)
        image = store.resolve(f"data+{new.digest}")
        assert (image.layers, image.size) == ((new,), 30)

    def test_an_image_whose_layer_is_gone_says_so(self, store: ImageStore) -> None:
        layer = make(store, a_lock("a"))
        self.tagged(store, "data", layer)
        (layer.path.parent / "layer.json").unlink()
        with pytest.raises(InvalidImage, match="data are gone"):
            store.resolve("data")

    @pytest.mark.parametrize("module", ["", "a-b", "a.", "a;b", "x" * 200])
    def test_what_is_no_module_is_not_preloaded(self, store: ImageStore, module: str) -> None:
        with pytest.raises(InvalidRequest):
            self.tagged(store, "data", preload=(module,))

    @pytest.mark.parametrize("name", ["sha256:" + "0" * 64, "a+b", "host"])
    def test_names_that_stand_for_something_else_cannot_be_given(self, store: ImageStore, name: str) -> None:
        with pytest.raises(InvalidRequest):
            self.tagged(store, name)


class TestTemplates:
    def standing(self, most: int, used: str) -> Templates:
        templates = Templates(most)
        for name in used:
            with templates.in_use(name):
                templates.add(name)
        return templates

    def test_those_not_used_the_longest_are_too_many_first(self) -> None:
        templates = self.standing(2, "abca")
        assert templates.surplus(()) == ["b"]
        templates.remove("b")
        assert templates.surplus(()) == []

    def test_those_in_use_stay(self) -> None:
        templates = self.standing(1, "ab")
        with templates.in_use("a"):
            assert templates.surplus({"b"}) == []
            assert templates.surplus(()) == ["b"]
