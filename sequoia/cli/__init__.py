"""The command line: one file per command, listed here and imported when it is called for.

Exit codes: 0; 2 for bad input, with one line ``error: ...`` on stderr; 130 after an interrupt.
Text goes to stdout; tables, notes and progress go to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from sequoia.version import __version__

# Command -> module; the module holds a click command of the same name. Command modules must be
# cheap to import (torch only inside functions), so that help and usage errors come at once.
COMMANDS = {
    "generate": "sequoia.cli.generate",
    "chat": "sequoia.cli.chat",
    "info": "sequoia.cli.info",
    "show": "sequoia.cli.show",
    "profile": "sequoia.cli.profile",
    "tree": "sequoia.cli.tree",
    "tune": "sequoia.cli.tune",
}

EXIT_BAD_INPUT = 2
EXIT_INTERRUPT = 130


class LazyGroup(click.Group):
    """A group that imports a command's module on use, and reports every bad input as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(COMMANDS[cmd_name]), cmd_name)

    def main(  # type: ignore[override]  # click's overloads say Never when it exits
        self, args: Sequence[str] | None = None, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx is not None else "sequoia"
            _fail(f"{error.format_message()} (see `{command} --help`)")
        except click.Abort:
            click.echo("interrupted", err=True)
            sys.exit(EXIT_INTERRUPT)
        except click.ClickException as error:
            _fail(error.format_message())
        except RuntimeError as error:
            if "memory" not in str(error):  # torch says so of a device's memory and of the host's
                raise
            _fail(f"out of memory ({str(error).splitlines()[0]}): a smaller tree or context helps")
        except (ValueError, ImportError, OSError) as error:
            _fail(str(error))
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    """End with the one line that a script or a person can act on."""
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(EXIT_BAD_INPUT)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="sequoia")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Decode faster without changing the text: a small draft model proposes a tree of tokens, the
    target model scores it in one pass, a verifier keeps what the target itself would have said.

    \b
    Try it with the pair of models that ships:
      sequoia generate --chat --compare --prompt "Why is the sky blue?"
      sequoia chat
      sequoia show kary:2^3
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
