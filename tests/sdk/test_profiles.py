"""Which server is meant, and with what key: the one order for the library and the command line."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tidebox.errors import InvalidRequest, NotFound
from tidebox.sdk.profiles import FILE, Profile, Profiles
from tidebox.sdk.server_target import find_target

WORK, HOME = "https://work.example", "https://home.example"


@pytest.fixture(autouse=True)
def config_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("TIDEBOX_URL", "TIDEBOX_API_KEY", "TIDEBOX_PROFILE", "SANDBOX_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SANDBOX_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "tidebox"


def stored(config_dir: Path) -> Profiles:
    """Two servers, the last one current."""
    profiles = Profiles.load(config_dir)
    profiles.put("home", Profile(HOME, "home-key"))
    profiles.put("work", Profile(WORK, "work-key"))
    return profiles


def meant(url: str | None = None, key: str | None = None, profile: str | None = None) -> tuple[str, str | None]:
    target = find_target(url, key, profile=profile)
    return target.http_url, target.key


def test_without_anything_it_is_one_on_this_machine() -> None:
    assert meant() == ("http://127.0.0.1:8787", None)


def test_the_order_of_servers(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(config_dir)
    assert meant() == (WORK, "work-key")
    monkeypatch.setenv("TIDEBOX_PROFILE", "home")
    assert meant() == (HOME, "home-key")
    monkeypatch.setenv("TIDEBOX_URL", "https://named.example")
    assert meant() == ("https://named.example", None)
    assert meant(profile="work") == (WORK, "work-key")
    assert meant(HOME) == (HOME, "home-key")
    with pytest.raises(InvalidRequest, match="not both"):
        meant(HOME, profile="work")


def test_the_order_of_keys(config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_API_KEY", "servers-key")
    assert meant(WORK) == (WORK, "servers-key")
    stored(config_dir)
    assert meant(WORK) == (WORK, "work-key")
    assert meant(WORK + "/") == (WORK, "work-key")
    monkeypatch.setenv("TIDEBOX_API_KEY", "named-key")
    assert meant(WORK) == (WORK, "named-key")
    assert meant() == (WORK, "named-key")
    assert meant(profile="work") == (WORK, "work-key")
    assert meant(profile="work", key="given") == (WORK, "given")


def test_a_key_goes_to_no_other_server(config_dir: Path) -> None:
    stored(config_dir)
    assert meant("https://work.example.evil")[1] is None
    assert meant("https://work.example:444")[1] is None
    assert meant("http://work.example")[1] is None


def test_only_the_user_can_read_it(config_dir: Path) -> None:
    stored(config_dir)
    assert stat.S_IMODE((config_dir / FILE).stat().st_mode) == 0o600
    assert [path.name for path in config_dir.iterdir()] == [FILE]
    assert "work-key" not in repr(Profiles.load(config_dir).profiles)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o644])
def test_a_file_that_others_can_read_is_refused(config_dir: Path, mode: int) -> None:
    stored(config_dir)
    (config_dir / FILE).chmod(mode)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        meant()
    # Where everything is said it is not looked at.
    assert meant(WORK, "given") == (WORK, "given")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"profiles": 1}', '{"profiles": {"a": {"url": 1}}}', "\x00"])
def test_a_file_that_cannot_be_understood(config_dir: Path, text: str) -> None:
    stored(config_dir)
    (config_dir / FILE).write_text(text)
    with pytest.raises(InvalidRequest, match="log in again"):
        meant()


def test_a_profile_that_is_not_there(config_dir: Path) -> None:
    profiles = stored(config_dir)
    with pytest.raises(NotFound, match="home, work"):
        meant(profile="other")
    profiles.remove("work")
    assert meant() == ("http://127.0.0.1:8787", None)
    assert json.loads((config_dir / FILE).read_text())["current"] is None
    with pytest.raises(InvalidRequest):
        profiles.put("../x", Profile(WORK))
