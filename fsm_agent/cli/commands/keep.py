"""`prune`, `purge`, `export` and `verify`: what is kept of runs, and what is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO

import click

from checkpoints.errors import CorruptEntry, RunNotFound, RunOpen
from checkpoints.model import CLOSED, Head, RunId
from fsm_agent import archive
from fsm_agent.cli import asjson, exporting, failures, process
from fsm_agent.cli.clean import one_line
from fsm_agent.cli.exporting import Tampered
from fsm_agent.cli.failures import FAILED, USAGE, CliError, clock
from fsm_agent.cli.opening import looking
from fsm_agent.cli.process import put, say
from fsm_agent.cli.settings import common, current, json_only
from fsm_agent.cli.spans import Span


@click.command("prune")
@click.option("--older-than", type=Span(), required=True, help="Time since their end, as in 30d.")
@click.option("--dry-run", is_flag=True, help="Only say which runs these are.")
@common
def prune_command(older_than: float, dry_run: bool) -> int:
    """Remove finished runs that ended longer ago than this.

    Runs under way or waiting are never removed, nor runs that such a run still needs. Prints each
    run that is gone.
    """
    count = process.run(lambda: _prune(older_than, dry_run))
    word = "would be removed" if dry_run else "removed"
    say(f"{count} finished run(s) {word}.")
    return failures.DONE


async def _prune(older_than: float, is_dry: bool) -> int:
    async with looking() as runtime:
        before_ms = await runtime.store.now_ms() - int(older_than * 1000)
        heads = await archive.prunable(runtime.store, before_ms=before_ms)
        if is_dry:
            for head in heads:
                _put_gone(head, is_dry=True)
            return len(heads)
        count = 0
        async for head in archive.prune(runtime.store, heads, before_ms=before_ms):
            _put_gone(head, is_dry=False)
            count += 1
        return count


def _put_gone(head: Head, *, is_dry: bool) -> None:
    if current().is_json:
        put(asjson.line({"event": "pruned", "is_dry_run": is_dry, "run_id": head.run_id,
                         "status": head.status, "ended_ms": head.updated_ms}))  # fmt: skip
    else:
        put(f"{head.run_id}  {head.status:<5}  ended {clock(head.updated_ms)}")


@click.command("purge")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--force", is_flag=True, help="Also a run that is not finished. Stop its worker first."
)
@click.option("--dry-run", is_flag=True, help="Only say which runs these are.")
@common
def purge_command(run_id: str, force: bool, dry_run: bool) -> int:
    """Remove every trace of a run: journal, requests, mail, outputs, live text, evidence.

    With it go the runs that worked for it. It cannot be undone: export it before. The server's
    append-only file and its dumps hold the bytes until the server writes them anew.
    """
    gone = process.run(lambda: _purge(run_id, force, dry_run))
    for each in gone:
        if current().is_json:
            put(asjson.line({"event": "purged", "is_dry_run": dry_run, "run_id": each}))
        else:
            put(each)
    say(f"{len(gone)} run(s) {'would be removed' if dry_run else 'removed'}.")
    return failures.DONE


async def _purge(run_id: str, is_forced: bool, is_dry: bool) -> list[str]:
    async with looking() as runtime:
        store = runtime.store
        try:
            head = await store.head(RunId(run_id))
        except RunNotFound:
            # What a half-deleted run left behind goes without its head.
            if is_dry or not await archive.purge(store, run_id, is_forced=is_forced):
                raise
            return [run_id]
        if head.status not in CLOSED and not is_forced:
            raise RunOpen(run_id, head.status)
        gone = await archive.family(store, run_id)
        if is_dry:
            return gone
        # Its children first: whatever stops us, the run itself still names the others.
        return [
            each
            for each in reversed(gone)
            if await archive.purge(store, each, is_forced=is_forced or each != run_id)
        ]


@click.command("export")
@click.argument("run_ids", metavar="[RUN]…", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Every run of the store.")
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="A file that is not there yet.")
@common
def export_command(run_ids: tuple[str, ...], is_all: bool, out: str | None) -> int:
    """Write runs as JSON lines: every entry as facts and as bytes, with a hash chain.

    What the store keeps encrypted is readable there. Check such a file with: fsm-agent verify FILE
    """
    if bool(run_ids) == is_all:
        raise CliError("name runs, or use --all.", USAGE)
    with ExitStack() as stack:
        if out is not None:
            try:
                # Neither a file of somebody's nor a link to one is written over, and nobody else
                # reads what may have been encrypted.
                handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                file = stack.enter_context(open(handle, "w", encoding="utf-8"))
            except FileExistsError:
                raise CliError(f"{out} is there already. Name another file.", USAGE) from None
            runs, lost = process.run(lambda: _export(run_ids, lambda text: print(text, file=file)))
        else:
            runs, lost = process.run(lambda: _export(run_ids, put))
    say(f"{runs} run(s) exported." + (f" {lost} could not be read." if lost else ""))
    return FAILED if lost else failures.DONE


async def _export(run_ids: tuple[str, ...], write: Callable[[str], None]) -> tuple[int, int]:
    """How many runs were written, and how many could not be read."""
    runs = lost = 0
    async with looking() as runtime:
        store = runtime.store
        if run_ids:
            heads = [await store.head(RunId(run_id)) for run_id in dict.fromkeys(run_ids)]
        else:
            heads = await archive.all_runs(store)
        for head in heads:
            try:
                lines = await exporting.lines_of(store, head)
            except (CorruptEntry, RunNotFound) as error:
                say(f"error: {one_line(str(error), 300)}")
                lost += 1
                continue
            for line in lines:
                write(asjson.line(line))
            runs += 1
    return runs, lost


@click.command("verify")
@click.argument("file", type=click.File("rb"))
@json_only
def verify_command(file: BinaryIO) -> int:
    """Check an export: every entry, its hash chain, and that its facts are those of its bytes.

    FILE may be '-' for stdin. Exit code 1 names the first line that was changed.
    """
    runs = entries = 0
    try:
        for run_id, count in exporting.verify(file):
            runs, entries = runs + 1, entries + count
            if current().is_json:
                put(asjson.line({"event": "verified", "run_id": run_id, "entries": count}))
    except Tampered as error:
        raise CliError(f"{getattr(file, 'name', '-')}: {error}", FAILED) from error
    if not current().is_json:
        put(f"ok: {runs} run(s), {entries} entries")
    return failures.DONE
