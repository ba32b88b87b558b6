"""The `edged` command. A command's module is imported when it runs, so a start pays only for what it uses.

Add a command: one module in this folder that exports `command`, one name in COMMANDS.

Exit status: 0 done; 1 an error, on stderr as `error: what is wrong` and `hint: what to do`; 2 wrong usage; 3 some files
or folders were refused (`ingest`); 4 the manuals hold no answer (`ask`, `search`); 130 interrupted (Ctrl-C); 141 the
reader of the output went away.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys

# OpenBLAS starts a thread per processor when numpy is imported (50 ms on two cores), and edged computes in its own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click

from edged import __version__
from edged.cli.report import report
from edged.errors import EdgedError

COMMANDS = ("serve", "run", "chat", "pull", "models", "inspect", "convert", "embed", "ingest", "search", "ask",
            "store", "tokenize", "bench", "doctor")


class Commands(click.Group):
    """Finds commands by module name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"edged.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            _close_output()
            return 141
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
                raise
            _close_output()
            raise EdgedError(f"cannot write the output: {error.strerror}") from error


def _close_output() -> None:
    """Nothing more can be written, not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done, 1 error, 2 wrong usage, 3 some files or folders were refused, 4 not in the manuals, "
           "130 interrupted, 141 output closed by its reader.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Run GGUF models on small machines: from the shell, or as a daemon behind a Unix socket."""


def main(args: list[str] | None = None) -> None:
    """Run one command and exit with its status."""
    # A start makes a hundred thousand objects and hardly any garbage: collections would take 10 ms to find that out.
    gc.disable()
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run one command; its exit status. Every error is printed here and nowhere else."""
    try:
        status: int | None = cli.main(args, prog_name="edged", standalone_mode=False)
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except EdgedError as e:
        report(e)
        return 1
    except click.Abort:  # click's word for KeyboardInterrupt
        return 130
    return status or 0


if __name__ == "__main__":
    main()
