"""``tidebox runs``: the runs that a server keeps, their logs and artifacts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidebox.cli.advice import advise
from tidebox.cli.output import FAILED, note, print_fields, print_table, say
from tidebox.cli.remote import Server, ServerGroup, ask, print_json, server_options
from tidebox.errors import NotFound

if TYPE_CHECKING:
    from tidebox.sdk import AsyncInterpreter
    from tidebox.sdk.interpreter.results import Run

_PHASES = ("queued", "starting", "running", "completed", "failed", "timed_out", "killed")
_run = click.argument("run_id", metavar="RUN", help="The id of a run.")


@click.group("runs", cls=ServerGroup)
def command() -> None:
    """Runs on a server: list, logs, artifacts."""


@command.command("list")
@click.option("--session", "session_id", metavar="ID", help="Only those of a session.")
@click.option("--phase", type=click.Choice(_PHASES), help="Only those in a phase.")
@click.option("--everybody", is_flag=True, help="Those of all users, for admins.")
@click.option("--limit", default=20, metavar="N", type=click.IntRange(1, 1000), help="How many.", show_default=True)
@server_options
def list_runs(
    session_id: str | None, phase: str | None, everybody: bool, limit: int, server: Server, as_json: bool
) -> None:
    """Show runs, newest first."""
    from tidebox.model.run import Phase

    wanted = None if phase is None else Phase(phase)

    async def work(client: AsyncInterpreter) -> Any:
        if everybody:
            return await client.admin.list_runs(session_id=session_id, phase=wanted, limit=limit)
        page = await client.list_runs(session_id=session_id, phase=wanted, limit=limit)
        if session_id is not None and not page.items:
            try:
                await client.get_session(session_id)  # one that was removed is known by its runs alone
            except NotFound as error:
                advise(error, "'tidebox sessions list' shows yours")
                raise
        return page

    page = ask(server, work)
    if as_json:
        print_json(page)
        return
    from tidebox.cli.wording import PHASE_COLORS, moment, took

    rows = [
        (
            *((run.id, run.user_id) if everybody else (run.id,)),
            run.phase.value,
            "" if run.exit_code is None else str(run.exit_code),
            run.base_image or "",
            moment(run.created_at),
            took(run.started_at, run.finished_at),
            run.reason_code or "",
        )
        for run in page.items[:limit]
    ]
    user = ("USER",) if everybody else ()
    columns = ("RUN", *user, "PHASE", "EXIT", "IMAGE", "CREATED", "TOOK", "REASON")
    print_table(columns, rows, PHASE_COLORS, spare=("IMAGE", "CREATED", "REASON"))


@command.command("show")
@_run
@server_options
def show_run(run_id: str, server: Server, as_json: bool) -> None:
    """Show all that is known of a run."""
    run = ask(server, lambda client: client.get_run(run_id))
    if as_json:
        print_json(run)
    else:
        _print_run(run)


@command.command("logs")
@_run
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only one of the streams.")
@server_options
def show_logs(run_id: str, follow: bool, stream: str | None, server: Server, as_json: bool) -> int:
    """Print what a run wrote, each stream to our own of that name.

    With --json each entry is one JSON object on a line.
    """
    from tidebox.cli import signals
    from tidebox.cli.logs import show

    return signals.run(show(server, run_id, follow=follow, stream=stream, as_json=as_json))


@command.command("cancel")
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, help="Ids of runs.")
@server_options
def cancel_runs(run_ids: tuple[str, ...], server: Server, as_json: bool) -> None:
    """End runs: SIGTERM, and SIGKILL after a grace."""

    async def work(client: AsyncInterpreter) -> None:
        for run_id in run_ids:
            try:
                run = await client.cancel_run(run_id)
            except NotFound:
                raise NotFound(f"no such run: {run_id}", run_id=run_id) from None
            # As soon as it is done: the next one may not be there.
            if as_json:
                print_json(run)
            else:
                say(f"{run.id} {'is being cancelled' if not run.phase.terminal else run.phase.value}")

    ask(server, work)


@command.command("artifacts")
@_run
@click.argument("paths", metavar="[PATH]...", nargs=-1, help="Which of them; all without.")
@click.option("--to", "directory", metavar="DIR", help="Copy them into a directory instead of listing them.")
@click.option("--force", is_flag=True, help="Let them replace files.")
@server_options
def show_artifacts(
    run_id: str, paths: tuple[str, ...], directory: str | None, force: bool, server: Server, as_json: bool
) -> int:
    """List the files that a run left, or copy them here."""
    from tidebox.cli import fetching

    if directory is None:
        found = ask(server, lambda client: fetching.find(client, run_id, paths))
        if as_json:
            print_json({"items": found})
        else:
            from tidebox.cli.wording import moment, size_text

            rows = [(each.path, size_text(each.size), moment(each.expires_at)) for each in found]
            print_table(("PATH", "SIZE", "KEPT UNTIL"), rows)
        return 0
    saved = ask(server, lambda client: fetching.fetch(client, run_id, paths, directory, replace=force))
    refused = [each for each in saved if each.refused]
    if as_json:
        print_json({"items": saved})
    for each in refused:
        note(f"{each.path} was not saved: {each.refused}")
    return FAILED if refused else 0


def _print_run(run: Run) -> None:
    from tidebox.cli.wording import moment, size_text, span

    used = run.resource_usage
    print_fields(
        {
            "run": run.id,
            "session": run.session_id,
            "phase": run.phase.value,
            "reason": run.reason_code,
            "message": run.message,
            "exit code": run.exit_code,
            "signal": run.signal,
            "image": run.base_image,
            "runtime": run.runtime,
            "created": moment(run.created_at),
            "started": moment(run.started_at) or None,
            "finished": moment(run.finished_at) or None,
            "cpu time": None if used.cpu_time_sec is None else span(used.cpu_time_sec),
            "memory peak": None if used.peak_rss_mb is None else size_text(used.peak_rss_mb * 2**20),
            "output": None if used.log_bytes is None else size_text(used.log_bytes),
            "artifacts": None if used.artifact_bytes is None else size_text(used.artifact_bytes),
            "labels": ", ".join(f"{name}={value}" for name, value in run.labels.items()) or None,
        }
    )
