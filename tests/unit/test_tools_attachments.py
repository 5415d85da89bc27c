"""Files that come with a tool's result: taken at once, within limits, and never a failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.tools import ToolContext, done, partial, probed, terminate, tool, with_files
from fsm_agent.tools import attachments as attachments_module
from fsm_agent.tools.attachments import Attachment
from fsm_agent.tools.dispatch import Result, run_call
from tests.unit import isolated

CONTEXT = ToolContext(run_id="r", call_id="c", idempotency_key="k")


async def returned(value: Any) -> Result:
    made = tool(lambda: value, name="t")
    return await run_call(made, made.bind("{}"), CONTEXT)


async def test_a_result_has_its_text_and_its_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"from a path")
    value = with_files({"rows": 2}, path, str(path), ("b.png", b"bytes"))
    path.unlink()  # it was read when it was given

    result = await returned(value)

    assert (result.status, result.text) == ("success", '{"rows": 2}')
    assert result.files == (
        Attachment("a.txt", b"from a path"),
        Attachment("a.txt", b"from a path"),
        Attachment("b.png", b"bytes"),
    )


async def test_files_may_be_all_there_is_and_stand_inside_other_outcomes() -> None:
    bare = await returned(with_files(None, ("a", b"1")))
    nested = await returned(with_files(partial(with_files("x", ("a", b"1")), "why"), ("b", b"2")))
    last = await returned(terminate(with_files("over", ("a", b"1"))))

    assert (bare.text, len(bare.files)) == ("", 1)
    assert nested.status == "partial"
    assert {file.name for file in nested.files} == {"a", "b"}
    assert (last.ends, last.text, len(last.files)) == (True, "over", 1)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("nowhere/x.png", "No such file"),
        ("/", "no regular file"),
        ("a\0b", "cannot be read"),
        (7, "a int is no file"),
        (("a.txt", "text"), "a tuple is no file"),
    ],
)
async def test_what_is_no_file_is_told_and_the_result_stands(file: Any, why: str) -> None:
    result = await returned(with_files("made it", file, ("good", b"1")))

    assert (result.status, result.text) == ("success", "made it")
    assert why in result.files[0].problem
    assert result.files[1].data == b"1"


async def test_a_pipe_that_nobody_writes_to_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    result = await returned(with_files("x", tmp_path / "pipe"))

    assert result.files[0].problem == "it is no regular file"


async def test_too_many_and_too_large_ones_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attachments_module, "MAX_ATTACHED_BYTES", 10)
    (tmp_path / "large").write_bytes(b"x" * 50)

    large = await returned(with_files("x", ("a", b"1234567"), ("b", b"12345"), tmp_path / "large"))
    many = await returned(with_files("x", *[("n", b"") for _ in range(20)]))

    assert [file.data for file in large.files] == [b"1234567", b"", b""]
    assert "5 bytes" in large.files[1].problem
    assert "50 bytes" in large.files[2].problem
    assert len(many.files) == 17
    assert "at most 16" in many.files[-1].problem


async def test_a_process_of_its_own_hands_its_files_over() -> None:
    made = isolated.draw

    result = await run_call(made, made.bind("{}"), CONTEXT)

    assert (result.status, result.text) == ("success", "drawn")
    assert result.files[0] == Attachment("a.bin", bytes(range(256)))
    assert "No such file" in result.files[1].problem


async def test_what_a_check_has_found_may_have_files() -> None:
    found = done(with_files("found", ("a", b"1")))
    made = tool(lambda: "x", name="t", effect=probed(check=lambda: found))

    from fsm_agent.tools.dispatch import shown_result

    assert shown_result(made, found.result, 0, 1).files == (Attachment("a", b"1"),)


async def test_bare_bytes_are_no_result_and_the_tool_is_told_what_is() -> None:
    result = await returned(b"\x89PNG")

    assert result.status == "error"
    assert "with_files" in result.text
