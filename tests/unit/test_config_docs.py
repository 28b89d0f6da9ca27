"""docs/configuration.md is what the settings say."""

from __future__ import annotations

import pytest

from scripts import gen_config_docs


def test_the_page_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert gen_config_docs.TARGET.read_text() == gen_config_docs.render(), "run scripts/gen_config_docs.py"
