"""A chat that survives this process, about the files of a folder.

    export OPENAI_API_KEY=…  FSM_AGENT_MODEL=…        # OPENAI_BASE_URL for another server
    fsm-agent chat --agent examples/chat.py:agent

It reads the current folder, or FSM_REPORT_DIR, and nothing outside it.
"""

from repo_report import list_files, read_file, search_text

from fsm_agent import ask_user, chat

agent = chat(
    "chat",
    "You talk with a person about the files of a folder. Look before you answer, and be brief.",
    tools=[list_files, read_file, search_text, ask_user],
)
