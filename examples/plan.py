"""Plan first, let a person change the plan, then carry it out and write the result down.

    export OPENAI_API_KEY=…  FSM_AGENT_MODEL=…        # OPENAI_BASE_URL for another server
    fsm-agent run --agent examples/plan.py:agent "Compare the test folders and suggest what to merge."
    fsm-agent edit RUN --args '{"steps": ["…", "…"]}'  # or approve, or reject RUN -m REASON
    fsm-agent resume RUN

It reads the current folder, or FSM_REPORT_DIR, and nothing outside it.
"""  # noqa: E501

from repo_report import list_files, read_file, search_text

from fsm_agent import plan

agent = plan(
    "planner",
    "You work on the files of a folder, step by step, and say which file each finding is from.",
    tools=[list_files, read_file, search_text],
    max_steps=6,
)
