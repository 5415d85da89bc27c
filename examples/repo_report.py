"""An agent that reads a folder and writes a report about it.

It works with any OpenAI-compatible endpoint:

    export OPENAI_API_KEY=…  FSM_AGENT_MODEL=…        # OPENAI_BASE_URL for another server
    fsm-agent run --agent examples/repo_report.py:agent "What is this project, and what is missing?"

It reads the current folder, or FSM_REPORT_DIR, and nothing outside it.
"""

import fnmatch
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fsm_agent import Agent, ToolContext, tool

SKIPPED = {
    *(".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", "dist", "build"),
    *(".fsm-agent", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
}
MAX_FILES = 500
MAX_FILE_BYTES = 2_000_000
MAX_LINES = 400
MAX_MATCHES = 80
SEARCH_S = 10.0


def root() -> Path:
    """The folder that the report is about."""
    return Path(os.environ.get("FSM_REPORT_DIR") or ".").resolve()


def inside(path: str) -> Path:
    """The file or folder at `path`. Refuses what leads out of the folder, by '..' or by a link."""
    found = (root() / path).resolve()
    if not found.is_relative_to(root()):
        raise PermissionError(f"{path!r} is outside of the folder. Use a path inside it.")
    return found


def files_below(folder: Path) -> Iterator[Path]:
    """Files in reading order, without version control, caches and links that lead out."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in sorted(names):
            file = Path(where, name)
            if file.is_file() and file.resolve().is_relative_to(root()):
                yield file


def text_of(file: Path) -> str | None:
    """A file's text, None if it is too large or not text."""
    if file.stat().st_size > MAX_FILE_BYTES:
        return None
    content = file.read_bytes()
    return None if b"\0" in content[:8000] else content.decode("utf-8", "replace")


@tool(effect="read")
def list_files(
    folder: Annotated[str, "A folder, relative to the top."] = ".",
    pattern: Annotated[str, "A pattern for file names, such as *.py."] = "*",
) -> str:
    """List the files below a folder with their sizes in bytes."""
    start = inside(folder)
    if not start.is_dir():
        raise NotADirectoryError(f"there is no folder {folder!r}.")
    lines: list[str] = []
    for file in files_below(start):
        if not fnmatch.fnmatch(file.name, pattern):
            continue
        if len(lines) == MAX_FILES:
            lines.append(f"… more than {MAX_FILES} files. Give a folder or a narrower pattern.")
            break
        lines.append(f"{file.stat().st_size:>9}  {file.relative_to(root())}")
    return "\n".join(lines) or "no such files"


@tool(effect="read")
def read_file(
    path: Annotated[str, "A file, relative to the top."],
    first_line: Annotated[int, "Where to begin, from 1."] = 1,
) -> str:
    """Read up to 400 lines of a text file, with their numbers."""
    file = inside(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {path!r}. See list_files.")
    text = text_of(file)
    if text is None:
        raise ValueError(f"{path!r} is no text, or larger than {MAX_FILE_BYTES} bytes.")
    lines = text.splitlines()
    start = max(1, first_line)
    shown = lines[start - 1 : start - 1 + MAX_LINES]
    rows = [f"{number:>5}  {line[:500]}" for number, line in enumerate(shown, start)]
    left = len(lines) - (start - 1 + len(shown))
    return "\n".join([*rows, f"… {left} more lines"] if left > 0 else rows) or "(empty)"


@tool(effect="read", timeout_s=SEARCH_S + 5)
def search_text(
    words: Annotated[str, "The text to look for; upper and lower case are the same."],
    pattern: Annotated[str, "A pattern for file names, such as *.md."] = "*",
    *,
    context: ToolContext,
) -> str:
    """Find lines that hold a text, as path:line: text."""
    if not words.strip():
        raise ValueError("give some text to look for.")
    wanted = re.compile(re.escape(words), re.IGNORECASE)
    found: list[str] = []
    for count, file in enumerate(files_below(root()), 1):
        if context.is_cancelled or len(found) >= MAX_MATCHES:
            break
        if count % 100 == 0:
            context.progress(f"{count} files, {len(found)} matches")
        if fnmatch.fnmatch(file.name, pattern):
            found += _matches(file, wanted)
    cut = [f"… cut at {MAX_MATCHES} matches"] if len(found) >= MAX_MATCHES else []
    return "\n".join([*found[:MAX_MATCHES], *cut]) or f"no file holds {words!r}"


def _matches(file: Path, wanted: re.Pattern[str]) -> list[str]:
    name = file.relative_to(root())
    return [
        f"{name}:{number}: {line.strip()[:200]}"
        for number, line in enumerate((text_of(file) or "").splitlines(), 1)
        if wanted.search(line)
    ]


@tool(effect="idempotent")  # the same text at the same place, however often
def write_report(
    text: Annotated[str, "The whole report in Markdown."],
    path: Annotated[str, "Where it goes, relative to the top."] = "REPORT.md",
) -> str:
    """Write the report. A file that is no earlier report is not overwritten."""
    file = inside(path)
    if file.suffix != ".md":
        raise ValueError(f"{path!r} is not a Markdown file. End its name with .md.")
    if file.exists() and not file.read_text("utf-8", "replace").startswith(MARK):
        raise FileExistsError(f"{path!r} exists and is no report of mine. Choose another name.")
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(f"{MARK}\n{text.rstrip()}\n", encoding="utf-8")
    draft.replace(file)
    return f"written: {path}, {len(text.split())} words"


MARK = "<!-- report by fsm-agent: may be overwritten by the next one -->"

agent = Agent(
    "repo-report",
    "You study a folder of files and report on it. Look before you judge: list the files, read"
    " those that matter, search for what you suspect. Call several tools at once where they do not"
    " depend on each other. Say only what you have seen, with the path of the file. When the user"
    " wants a report as a file, write it with write_report; then answer with its gist.",
    tools=[list_files, read_file, search_text, write_report],
)
