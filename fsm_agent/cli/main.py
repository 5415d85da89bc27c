"""The command line: which commands there are, and what becomes of their failures."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Any, NamedTuple, NoReturn

import click

from fsm_agent.cli import failures, logs
from fsm_agent.cli.process import Stopped, muffle, open_missing_streams
from fsm_agent.cli.settings import common


class _Entry(NamedTuple):
    """A command before it is imported: `--help` imports none of them."""

    section: str
    module: str
    words: str


_ENTRIES = {
    "demo": _Entry("See it work", "demo", "Watch a run survive a real SIGKILL. Needs no key."),
    "doctor": _Entry("See it work", "doctor", "Check this machine, the store and the settings."),
    "crashtest": _Entry("See it work", "crashtest", "Kill your own agent at every write."),
    "chaos": _Entry("See it work", "chaos", "Kill and freeze a fleet, and count what is left."),
    "run": _Entry("Work", "run", "Start a run of an agent and work on it."),
    "chat": _Entry("Work", "chat", "Talk with an agent, message after message."),
    "start": _Entry("Work", "run", "Put a run on record; workers do the rest."),
    "resume": _Entry("Work", "run", "Go on with a run, whoever worked on it before."),
    "fork": _Entry("Work", "travel", "Begin a new run with the first entries of another one."),
    "worker": _Entry("Work", "worker", "Work on every run that is due."),
    "inbox": _Entry("Look", "inbox", "Serve the web inbox for people who approve."),
    "check-deploy": _Entry("Work", "deploy", "Find live runs that new code cannot serve."),
    "limit": _Entry("Work", "limit", "List and set what may go on at once, for all workers."),
    "list": _Entry("Look", "look", "List runs, newest first."),
    "show": _Entry("Look", "look", "Show everything that happened in a run."),
    "replay": _Entry("Look", "travel", "Rebuild a run from its journal, and compare its head."),
    "watch": _Entry("Look", "watch", "Watch a run live, from any terminal."),
    "graph": _Entry("Look", "graph", "Draw the state machine, and a run's way through it."),
    "explain": _Entry("Look", "why", "Say why a person was asked about a call, or not."),
    "audit": _Entry("Look", "why", "Print who decided what, with hashes, as JSON lines."),
    "prune": _Entry("Keep", "keep", "Remove finished runs of a certain age."),
    "purge": _Entry("Keep", "keep", "Remove every trace of a run."),
    "export": _Entry("Keep", "keep", "Write runs as JSON lines with a hash chain."),
    "verify": _Entry("Keep", "keep", "Check that an export is as it was written."),
    "approve": _Entry("Decide", "decide", "Let a call run with exactly the shown arguments."),
    "reject": _Entry("Decide", "decide", "Refuse a call; the model is told why."),
    "edit": _Entry("Decide", "decide", "Let a call run with other arguments."),
    "answer": _Entry("Decide", "decide", "Answer a question of a run."),
    "settle": _Entry("Decide", "decide", "Say what became of a call that is in doubt."),
    "comment": _Entry("Decide", "discuss", "Say something about a request; decides nothing."),
    "claim": _Entry("Decide", "discuss", "Say that you look at a request."),
    "release": _Entry("Decide", "discuss", "Take your claim back."),
    "consent": _Entry("Decide", "consent", "List, give and take back standing consents."),
    "say": _Entry("Decide", "talk", "Give a run a further message."),
    "link": _Entry("Decide", "link", "Make a link with which one person may decide once."),
    "cancel": _Entry("Decide", "talk", "End a run, at once or at its next commit point."),
}


_CODES = (
    "0 done, 1 failed or done but not completed, 2 usage, 3 waiting for a person, 130 and 143"
    " stopped by Ctrl-C and SIGTERM, 141 stopped because nobody reads stdout any more"
)


class _Commands(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ENTRIES:
            return None
        module = importlib.import_module(f"fsm_agent.cli.commands.{_ENTRIES[cmd_name].module}")
        command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from fsm_agent.errors import did_you_mean

        name = args[0]
        if name not in _ENTRIES and not name.startswith("-"):
            hint = did_you_mean(name, _ENTRIES)
            raise click.UsageError(f"there is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in _ENTRIES.items():
            sections.setdefault(entry.section, []).append((name, entry.words))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows, col_max=12)


def _print_version(context: click.Context) -> None:
    try:
        version = metadata.version("fsm-agent")
    except metadata.PackageNotFoundError:
        version = "of a checkout that is not installed"
    click.echo(f"fsm-agent {version}")
    context.exit()


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"Exit codes: {_CODES}.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, value: _print_version(context) if value else None,
    help="Show the version and exit.",
)
@common
def cli() -> None:
    """Run LLM agents whose every step is on record before the next one begins.

    A run survives kill -9, a deploy, or a week of waiting for a person, and goes on in any
    process. Start with: fsm-agent demo
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Its exit codes are those of `_CODES`."""
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a '?': it must not end the run.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    logs.set_up()
    code = _outcome(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        muffle(sys.stdout)
    except OSError as error:
        muffle(sys.stdout)
        code = failures.report(error)
    sys.exit(code)


def _outcome(arguments: list[str] | None) -> int:
    stdout = sys.stdout
    try:
        result: Any = cli.main(arguments, prog_name="fsm-agent", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return failures.USAGE
    except (Stopped, KeyboardInterrupt, click.Abort) as stopped:
        return stopped.code if isinstance(stopped, Stopped) else 130
    except BrokenPipeError:
        muffle(sys.stdout)
        return 141
    except SystemExit as left:
        if sys.stdout is not stdout:
            return 141  # click has put another in its place: nobody reads its help any more
        return left.code if isinstance(left.code, int) else failures.FAILED
    except Exception as error:  # this process's edge: everything becomes one line
        return failures.report(error)
    return result if isinstance(result, int) else failures.DONE


if __name__ == "__main__":
    main()
