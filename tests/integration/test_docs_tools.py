"""The code of docs/tools.md, as it stands there."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import fsm_agent

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
SERVER = Path(__file__).parents[1] / "unit" / "mcp_server.py"


def test_all_of_its_code_declares_tools_and_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.py").write_text(SERVER.read_text())
    (toml,) = re.findall(r"```toml\n# servers.toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "servers.toml").write_text(toml)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    names: dict[str, Any] = {name: getattr(fsm_agent, name) for name in fsm_agent.__all__}
    names["__name__"] = "page"

    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)

    assert [each.name for each in names["boss"].registry] == ["helper"]
    assert (names["search"].retries, names["search"].timeout_s) == (2, 10)
    assert type(names["send_invoice"].effect).__name__ == "Probed"
