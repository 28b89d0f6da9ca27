"""``tidebox image``: root file systems for boxes, imported, built, listed and removed."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tidebox.config import load_settings
from tidebox.errors import InvalidRequest, TideboxError
from tidebox.runtime.images import Image, ImageStore

app = typer.Typer(help="Root file systems for boxes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="What to call it, like debian:12 or my/app.", show_default=False)]


@contextlib.contextmanager
def _store() -> Iterator[ImageStore]:
    """The store of this installation; whatever goes wrong with it is one line and exit code 2."""
    try:
        yield ImageStore(load_settings().data_dir / "images")
    except TideboxError as error:
        reason = error.message
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
    else:
        return
    typer.echo(f"tidebox: {reason}", err=True)
    raise typer.Exit(2)


@app.command("import")
def import_image(
    name: Name,
    source: Annotated[
        Path, typer.Argument(help="A tar archive of a root file system, or an OCI layout; - is standard input.")
    ],
) -> None:
    """Take a root file system from a tar archive or an OCI layout."""
    with _store() as store, Console(stderr=True).status(f"Unpacking {source}"):
        image = store.import_(name, Path("/dev/stdin") if str(source) == "-" else source)
    _show(image)


@app.command("build")
def build_image(
    name: Name,
    packages: Annotated[list[str] | None, typer.Argument(help="Packages, like python3 or nodejs.")] = None,
    suite: Annotated[
        str | None, typer.Option(help="Release to take them from.", show_default="this machine's own")
    ] = None,
) -> None:
    """Make an image of Debian or Ubuntu packages."""
    with _store() as store:
        image = store.build(name, packages or [], suite or _own_suite())
    _show(image)


@app.command("list")
def list_images() -> None:
    """Show the imported images."""
    with _store() as store:
        images = store.list()
    table = Table("NAME", "DIGEST", "SIZE", "IMPORTED", box=None, pad_edge=False)
    for image in images:
        imported = time.strftime("%Y-%m-%d %H:%M", time.localtime(image.imported_at))
        table.add_row(image.name, _short(image), decimal(image.size or 0), imported)
    Console().print(table)


@app.command("remove")
def remove_image(name: Name) -> None:
    """Forget an image and delete its files."""
    with _store() as store:
        store.remove(name)


def _own_suite() -> str:
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME")
    if not suite:
        raise InvalidRequest("this machine is not of a Debian release; name one with --suite", field="suite")
    return suite


def _short(image: Image) -> str:
    return image.digest[: len("sha256:") + 12]


def _show(image: Image) -> None:
    typer.echo(f"{image.name} {_short(image)} {decimal(image.size or 0)}")
