"""Split a question, let child runs look into the parts side by side, and report with sources.

    export OPENAI_API_KEY=…  FSM_AGENT_MODEL=…        # OPENAI_BASE_URL for another server
    fsm-agent run --agent examples/research.py:agent "How does this project survive a crash?"

It reads the current folder, or FSM_REPORT_DIR, and nothing outside it. Each file that a child run
has read is a source of the report.
"""

from typing import Any

import repo_report
from repo_report import list_files, search_text

from fsm_agent import Source, research, tool, with_sources


@tool(effect="read", timeout_s=20)
def read_file(path: str, first_line: int = 1) -> Any:
    """Read a text file, from a line on."""
    text = repo_report.read_file.function(path, first_line)
    return with_sources(text, Source(path, f"file:{path}", f"from line {first_line}"))


agent = research(
    "researcher",
    "You answer questions about the files of a folder, and cite the files.",
    tools=[list_files, search_text, read_file],
    questions=4,
)
