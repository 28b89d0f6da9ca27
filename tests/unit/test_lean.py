"""Imports that leave out what nothing here uses: what was left out is there when it is asked for."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from tidebox.lean import bare_packages, deferred_models, without


def in_fresh_interpreter(program: str, path: Path | None = None) -> None:
    """Run a program in which nothing has been imported yet."""
    before = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path is not None else "import sys\n"
    done = subprocess.run(
        [sys.executable, "-c", before + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_package_is_missing_only_meanwhile() -> None:
    in_fresh_interpreter(
        """
        from tidebox.lean import without
        with without("colorsys"):
            try:
                import colorsys
            except ImportError:
                pass
            else:
                raise AssertionError("it was found")
        import colorsys
        assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
        """
    )


def test_a_package_that_was_imported_before_stays() -> None:
    with without("textwrap"):
        assert sys.modules["textwrap"] is textwrap
    assert sys.modules["textwrap"] is textwrap


def test_models_are_built_when_they_are_used() -> None:
    before = dict(BaseModel.model_config)
    with deferred_models():

        class Late(BaseModel):
            number: int

        class Later(BaseModel):
            late: Late

    class Now(BaseModel):
        number: int

    assert BaseModel.model_config == before
    assert not Late.__pydantic_complete__
    assert Now.__pydantic_complete__
    assert Later.model_validate({"late": {"number": "7"}}).late.number == 7
    with pytest.raises(ValidationError, match="valid integer"):
        Late(number="seven")  # type: ignore[arg-type]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a part that is heavy and one that is not."""
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "__init__.py").write_text("from some import heavy\nfrom some.heavy import WEIGHT\n")
    (tmp_path / "some" / "heavy.py").write_text("import some\nWEIGHT = 100\n")
    (tmp_path / "some" / "light.py").write_text("from .lighter import FEATHER\n")
    (tmp_path / "some" / "lighter.py").write_text("FEATHER = 1\n")
    return tmp_path


def test_a_module_of_a_package_is_imported_without_the_package_s_own_imports(package: Path) -> None:
    in_fresh_interpreter(
        """
        from tidebox.lean import bare_packages
        bare_packages("some", "missing", "some")
        from some.light import FEATHER
        import some
        assert FEATHER == 1 and some.light.FEATHER == 1 and some.__path__
        assert "some.heavy" not in sys.modules
        assert some.WEIGHT == 100 and "some.heavy" in sys.modules
        from some import heavy, light
        assert type(some) is type(sys)
        try:
            some.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        else:
            raise AssertionError("there is none")
        """,
        package,
    )


def test_a_package_that_fails_says_so_each_time(package: Path) -> None:
    (package / "some" / "__init__.py").write_text("import no_such_module\n")
    in_fresh_interpreter(
        """
        from tidebox.lean import bare_packages
        bare_packages("some")
        import some.light
        for _ in range(2):
            try:
                from some import WEIGHT
            except ModuleNotFoundError as error:
                assert "no_such_module" in str(error)
            else:
                raise AssertionError("it did not fail")
        """,
        package,
    )


def test_the_protocol_s_package_is_whole_for_others() -> None:
    in_fresh_interpreter(
        """
        import tidebox.mcp.stdio, tidebox.mcp.http
        left_out = ("mcp.client", "mcp.server.mcpserver", "rich", "sqlalchemy", "fastapi")
        loaded = [name for name in left_out if name in sys.modules]
        assert loaded in ([], ["rich"]), loaded
        from mcp import Client, ClientSession
        from mcp.server import MCPServer
        import mcp
        assert mcp.server.MCPServer is MCPServer and mcp.types.Tool
        """
    )


def test_a_start_loads_nothing_for_tracebacks_in_colours() -> None:
    pytest.importorskip("rich")
    in_fresh_interpreter(
        """
        import tidebox.logs, tidebox.server
        assert "rich" not in sys.modules
        import rich.console
        """
    )


def test_nothing_happens_to_a_package_that_is_there() -> None:
    bare_packages("json")
    import json

    assert json.loads("1") == 1
