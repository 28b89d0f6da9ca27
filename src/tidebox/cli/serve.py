"""``tidebox serve``: the server."""

from __future__ import annotations

import gc
from pathlib import Path

import click


@click.command("serve")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.", show_default="127.0.0.1")
@click.option("--port", type=int, metavar="N", help="Port to listen on; 0 takes a free one.", show_default="8787")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the key, logs and images are kept.",
    show_default="~/.local/share/tidebox",
)
def command(host: str | None, port: int | None, data_dir: Path | None) -> None:
    """Serve every protocol on one port, until SIGTERM or Ctrl-C.

    The first signal lets running programs finish for a while, the second ends them. All other settings are environment
    variables, see docs/configuration.md.
    """
    # Until the server is up: what is loaded is no garbage, and looking through it takes a tenth of the start.
    gc.disable()
    from tidebox import logs, server  # noqa: F401
    from tidebox.config import load_settings

    given = {"host": host, "port": port, "data_dir": data_dir}
    server.serve(load_settings(**{name: value for name, value in given.items() if value is not None}))
