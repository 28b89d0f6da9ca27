"""``tidebox completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import click


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(tidebox completion bash)"          in ~/.bashrc
    zsh:   eval "$(tidebox completion zsh)"           in ~/.zshrc
    fish:  tidebox completion fish | source           in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "tidebox", "_TIDEBOX_COMPLETE").source())
