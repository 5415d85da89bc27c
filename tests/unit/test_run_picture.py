"""The machine as an SVG: all arrows of the table, a run's way lit, nothing of a title unescaped."""

from __future__ import annotations

from xml.etree import ElementTree

from fsm_agent.run.picture import HEIGHT, WIDTH, svg
from fsm_agent.run.state import TABLE, State
from fsm_agent.runtime import Result

SVG = "{http://www.w3.org/2000/svg}"


def test_it_draws_every_state_and_every_arrow_of_the_table_once() -> None:
    root = ElementTree.fromstring(svg())

    names = {text.text for text in root.iter(f"{SVG}text") if text.get("class") == "name"}
    drawn = [(g.get("data-from"), g.get("data-to")) for g in root.iter(f"{SVG}g")
             if g.get("data-from")]  # fmt: skip
    assert names == {state.value for state in State}
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {(s.value, a.dest.value) for a in TABLE for s in a.sources}
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.get("x", 0)) < WIDTH
        assert 0 < float(text.get("y", 0)) < HEIGHT


def test_a_runs_way_is_lit_and_its_state_filled() -> None:
    way = [(State.OBSERVE, State.THINK), (State.THINK, State.ACT)]

    root = ElementTree.fromstring(svg(way, State.ACT, title='<r & "x">', is_standalone=False))

    lit = {(g.get("data-from"), g.get("data-to")) for g in root.iter(f"{SVG}g")
           if "lit" in (g.get("class") or "")}  # fmt: skip
    current = [g for g in root.iter(f"{SVG}g") if "current" in (g.get("class") or "").split()]
    assert lit == {(a.value, b.value) for a, b in way}
    assert [text.text for text in current[0].iter(f"{SVG}text")] == ["ACT"]
    assert root.find(f"{SVG}style") is None
    assert '<r & "x">' in (root.get("aria-label") or "")


def test_a_result_in_a_notebook_is_escaped_and_short_in_a_shell() -> None:
    result = Result(run_id="r", status="done", answer="<script>alert(1)</script>" * 100)

    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()
    assert len(repr(result)) < 300
