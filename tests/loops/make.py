# ruff: noqa: E501
"""Writes generated.jsonl: transcripts of runs that go in circles, and of long ones that do not.

    python -m tests.loops.make

Each shape is made a few times with other tools, words, lengths and beginnings; the seed is fixed.
A transcript is a line: `steps`, and for a loop `begins` (index of the first step of its first round)
and `period` (steps in a round). A step is a reply with its results, or what a person said.
by_hand.jsonl has the same form.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Step = dict[str, Any]
Rng = random.Random
TIMES = 3  # of each shape

TOPICS = [
    "asyncio timeout",
    "lease fencing",
    "invoice totals",
    "solar storage",
    "protein folding",
    "border tax",
    "sourdough starters",
    "river levels",
    "tram delays",
    "font kerning",
    "battery recall",
    "school budgets",
    "coral bleaching",
    "patent law",
    "queue depth",
    "glacier melt",
]
NAMES = [
    "auth.py",
    "billing.py",
    "cart.ts",
    "deploy.sh",
    "events.go",
    "forms.css",
    "graph.rs",
    "http.c",
    "index.html",
    "jobs.py",
    "keys.lua",
    "lexer.py",
    "mail.py",
    "nodes.java",
    "orders.sql",
    "parse.py",
    "queue.py",
    "routes.ts",
    "store.py",
    "tests.py",
    "users.rb",
    "views.py",
    "web.py",
    "yaml.c",
    "zones.py",
]
FACTS = [
    "The totals were restated in March after an audit found rounding errors",
    "Most readings come from two stations near the estuary",
    "A later release replaced the lock with a compare-and-set",
    "Nobody had tested the path where the second reply arrives first",
    "Costs fell by a third once the pipeline was shared",
    "The committee postponed the vote until the autumn session",
    "Heat loss doubles below minus ten degrees",
    "Three suppliers cover nine tenths of the demand",
    "The old parser accepted trailing commas without a warning",
    "Users in the north report longer queues on weekends",
    "Each shard keeps its own index and its own clock",
    "The grant covers travel but not equipment",
    "Migration was paused twice because of missing backups",
    "Field notes mention a second nest closer to the shore",
    "Only signed builds reach the stable channel",
    "The court asked for the original drawings",
]


def call(tool: str, result: str, status: str = "success", text: str = "", **args: Any) -> Step:
    return {"label": "TOOL", "text": text, "calls": [[tool, args]], "results": [[status, result]]}


def batch(*each: tuple[str, dict[str, Any], str]) -> Step:
    return {
        "label": "TOOL",
        "text": "",
        "calls": [[t, a] for t, a, _ in each],
        "results": [["success", r] for _, _, r in each],
    }


def think(text: str) -> Step:
    return {"label": "THINK", "text": text, "calls": [], "results": []}


def said(text: str) -> Step:
    return {"said": text}


def code(rng: Rng, lines: int = 4) -> str:
    words = [
        "value",
        "row",
        "lease",
        "token",
        "reply",
        "index",
        "chunk",
        "parse",
        "commit",
        "claim",
        "event",
        "label",
        "state",
        "window",
    ]
    return "\n".join(
        f"def {rng.choice(words)}_{rng.randrange(999)}({rng.choice(words)}): return {rng.choice(words)}.{rng.choice(words)}({rng.randrange(99)})"
        for _ in range(lines)
    )


def prose(rng: Rng, sentences: int = 3) -> str:
    return ". ".join(rng.sample(FACTS, sentences)) + "."


def fresh(rng: Rng, count: int) -> list[Step]:
    """Honest steps to begin with."""
    out = []
    for name in rng.sample(NAMES, count):
        topic = rng.choice(TOPICS)
        out.append(
            rng.choice(
                [
                    lambda n=name: call("read_file", code(rng), path=f"src/{n}"),
                    lambda t=topic: call(
                        "search",
                        prose(rng),
                        query=f"{t} {rng.randrange(2000, 2030)} {rng.choice(FACTS).split()[2]}",
                    ),
                    lambda t=topic, n=name: think(
                        f"{rng.choice(FACTS)}. So {t} matters for {n}, and {rng.choice(FACTS).lower()}."
                    ),
                ]
            )()
        )
    return out


def stamp(rng: Rng) -> str:
    return f"2026-11-{rng.randrange(1, 29):02}T{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}Z"


def uuid(rng: Rng) -> str:
    h = f"{rng.getrandbits(128):032x}"
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


# -- loops: a function gives the steps of one round after the other ------------------------------

Rounds = Callable[[Rng], tuple[int, Callable[[int], list[Step]]]]


def same_read(rng: Rng):
    name, text = rng.choice(NAMES), code(rng, rng.randrange(2, 12))
    return 1, lambda n: [call("read_file", text, path=name)]


def same_failure(rng: Rng):
    name = rng.choice(NAMES)
    return 1, lambda n: [
        call(
            "run_tests",
            f"FAILED {name}: assert {name!r} in index",
            "error",
            text=f"Let me run it again ({n}).",
            target=name,
        )
    ]


def failure_with_a_time(rng: Rng):
    topic = rng.choice(TOPICS)
    return 1, lambda n: [
        call(
            "fetch",
            f"{stamp(rng)} upstream refused the request for {topic}",
            "error",
            url=f"https://example.org/{topic.replace(' ', '-')}",
        )
    ]


def failure_with_an_id(rng: Rng):
    return 1, lambda n: [
        call(
            "submit_form",
            f"Validation failed (request {uuid(rng)}): field 'country' is missing",
            "error",
            form="address",
            city="Bern",
        )
    ]


def result_with_a_duration(rng: Rng):
    topic = rng.choice(TOPICS)
    return 1, lambda n: [
        call(
            "query",
            f"0 rows for {topic} in {rng.randrange(2, 900)} ms",
            sql=f"select * from facts where topic = '{topic}'",
        )
    ]


def two_reads(rng: Rng):
    a, b = rng.sample(NAMES, 2)
    ta, tb = code(rng), code(rng)
    return 2, lambda n: [call("read_file", ta, path=a), call("read_file", tb, path=b)]


def edit_and_revert(rng: Rng):
    name = rng.choice(NAMES)
    return 2, lambda n: [
        call("edit", "ok", path=name, old="timeout=3", new="timeout=30"),
        call("edit", "ok", path=name, old="timeout=30", new="timeout=3"),
    ]


def three_steps(rng: Rng):
    files = rng.sample(NAMES, 3)
    texts = [code(rng) for _ in files]
    return 3, lambda n: [call("read_file", t, path=f) for f, t in zip(files, texts, strict=True)]


def four_steps(rng: Rng):
    topic, name, text = rng.choice(TOPICS), rng.choice(NAMES), prose(rng)
    body = code(rng)
    return 4, lambda n: [
        call("search", text, query=topic),
        call("open", body, page=1),
        call("read_file", body, path=name),
        think("I should look at the search results once more before I go on with the report."),
    ]


def five_steps(rng: Rng):
    files = rng.sample(NAMES, 5)
    texts = [code(rng) for _ in files]
    return 5, lambda n: [call("read_file", t, path=f) for f, t in zip(files, texts, strict=True)]


def same_thought(rng: Rng):
    text = prose(rng, rng.randrange(1, 4))
    return 1, lambda n: [think(text)]


def nearly_same_thought(rng: Rng):
    topic, fact = rng.choice(TOPICS), rng.choice(FACTS)
    fillers = ["Now", "So", "Well", "Okay", "Next", "Then"]
    return 1, lambda n: [
        think(
            f"{fillers[n % 6]}, I need to find out more about {topic} before I can answer the question of the user. {fact}. I will look for reliable sources on {topic} and compare them carefully."
        )
    ]


def counted_thought(rng: Rng):
    return 1, lambda n: [
        think(
            f"Attempt {n + 3}: I will try the request to the server again and hope that it works."
        )
    ]


def chinese_thought(rng: Rng):
    topic = rng.choice(["合同条款", "气候数据", "订单退款", "考试安排"])
    openers = ["现在", "接下来", "那么", "好的"]
    return 1, lambda n: [
        think(
            f"{openers[n % 4]}，我需要先检查{topic}是否完整，然后再决定如何回答用户的问题，目前信息还不够充分。"
        )
    ]


def reworded_search(rng: Rng):
    topic = rng.choice(TOPICS)
    forms = [
        f"{topic} examples",
        f"Examples {topic}",
        f"{topic} example",
        f"example {topic.title()}",
        f"{topic.upper()} EXAMPLES",
        f"examples: {topic}",
    ]
    return 1, lambda n: [call("search", "No results.", query=forms[n % 6])]


def other_order_of_a_batch(rng: Rng):
    a, b = rng.sample(NAMES, 2)
    each = [("read_file", {"path": a}, code(rng)), ("read_file", {"path": b}, code(rng))]
    return 1, lambda n: [batch(*(each if n % 2 else each[::-1]))]


def thought_then_call(rng: Rng):
    name, text = rng.choice(NAMES), code(rng)
    openers = ["Let me check", "I should check", "I will check", "I want to check"]
    return 2, lambda n: [
        think(
            f"{openers[n % 4]} the contents of {name} again to be sure that the handler is registered there before I change anything in it."
        ),
        call("read_file", text, path=name),
    ]


def straying_between(count: int) -> Rounds:
    def shape(rng: Rng):
        files = rng.sample(NAMES, count)
        texts = {f: code(rng) for f in files}

        def one_round(n: int) -> list[Step]:
            order = rng.sample(files, count)
            return [call("read_file", texts[f], path=f) for f in order]

        return count, one_round

    return shape


def broken_replies(rng: Rng):
    text = prose(rng, 2)
    return 1, lambda n: [
        {"label": None, "text": text, "calls": [], "results": [], "violation": "missing_label"}
    ]


def same_question(rng: Rng):
    topic = rng.choice(TOPICS)
    return 1, lambda n: [
        call("ask_user", "I do not know.", question=f"Which source on {topic} do you prefer?")
    ]


def empty_thoughts(rng: Rng):
    return 1, lambda n: [think("")]


def same_delegation(rng: Rng):
    topic = rng.choice(TOPICS)
    return 1, lambda n: [
        call(
            "researcher",
            f"researcher (run c-{rng.getrandbits(64):016x}) did not finish. turns: the limit is reached",
            "error",
            task=f"Find three sources on {topic}",
        )
    ]


def path_spellings(rng: Rng):
    name = rng.choice(NAMES)
    forms = [name, f"./{name}", f" {name}", f"/{name}"]
    return 1, lambda n: [call("read_file", f"no such file: {name}", "error", path=forms[n % 4])]


def pages_beyond_the_end(rng: Rng):
    topic = rng.choice(TOPICS)
    return 1, lambda n: [call("list_items", "No more items.", topic=topic, page=9 + n)]


def paths_with_detours(rng: Rng):
    name, away = rng.choice(NAMES), rng.choice(["src", "docs", "lib"])
    forms = [
        f"{away}/{name}",
        f"{away}/./{name}",
        f"{away}/../{away}/{name}",
        f"{away}//{name}",
        f".\\{away}\\{name}",
    ]
    return 1, lambda n: [
        call("read_file", "permission denied", "error", path=forms[n % len(forms)], limit=100)
    ]


def offsets_out_of_range(rng: Rng):
    return 1, lambda n: [
        call(
            "read_log",
            f"offset {5000 + 100 * n} is out of range: the log has 4871 lines",
            "error",
            name="app",
            offset=5000 + 100 * n,
        )
    ]


def empty_lists(rng: Rng):
    topic = rng.choice(TOPICS)
    return 1, lambda n: [call("orders", '{"items": []}', topic=topic, page_number=str(4 + n))]


def longer_timeouts(rng: Rng):
    return 1, lambda n: [
        call(
            "run",
            "The command did not end in time.",
            "timeout",
            command="make all",
            timeout=30 * (n + 1),
        )
    ]


def toggling(rng: Rng):
    return 2, lambda n: [
        call("set_flag", "cache is on", name="cache", value=True),
        call("set_flag", "cache is off", name="cache", value=False),
    ]


LOOPS: dict[str, Rounds] = {f.__name__: f for f in (
    same_read, same_failure, failure_with_a_time, failure_with_an_id, result_with_a_duration, two_reads,
    edit_and_revert, three_steps, four_steps, five_steps, same_thought, nearly_same_thought, counted_thought,
    chinese_thought, reworded_search, other_order_of_a_batch, thought_then_call, broken_replies, same_question,
    empty_thoughts, same_delegation, path_spellings, pages_beyond_the_end, longer_timeouts, toggling,
    paths_with_detours, offsets_out_of_range, empty_lists,
)} | {"straying_between_3": straying_between(3), "straying_between_4": straying_between(4)}  # fmt: skip


# -- honest and long ------------------------------------------------------------------------------


def many_files(rng: Rng) -> list[Step]:
    return [
        call("read_file", code(rng, rng.randrange(2, 9)), path=f"{rng.choice('abc')}/{n}")
        for n in NAMES
    ]


def many_pages(rng: Rng) -> list[Step]:
    topic = rng.choice(TOPICS)
    return [
        call(
            "list_items",
            f"page {n} of 30: " + ", ".join(f"{topic} {rng.randrange(10**5)}" for _ in range(5)),
            topic=topic,
            page=n,
        )
        for n in range(30)
    ]


def edits_and_tests(rng: Rng) -> list[Step]:
    out = []
    for n in range(14):
        out.append(call("edit", "ok", path=rng.choice(NAMES), old=code(rng, 1), new=code(rng, 1)))
        out.append(
            call(
                "run_tests",
                "1 failed, 41 passed: test_totals - assert 3 == 4",
                "error" if n % 3 else "success",
            )
        )
    return out


def polled_job(rng: Rng) -> list[Step]:
    at, out = 0, []
    while at < 100:
        at = min(100, at + rng.randrange(2, 7))
        out.append(call("job_status", f"job 7 is running, {at} % done", job=7))
    return out


def polled_with_waits(rng: Rng) -> list[Step]:
    out = []
    for n in range(1, 14):
        out += [
            call("wait", "waited 60 s", seconds=60),
            call("job_status", f"stage {n} of 14: {rng.choice(FACTS)}", job=3),
        ]
    return out


def many_writes(rng: Rng) -> list[Step]:
    return [call("update_row", "ok", id=1000 + n, status="closed") for n in range(25)]


def searches_without_a_match(rng: Rng) -> list[Step]:
    return [
        call("grep", "no matches", pattern=f"{word}_{rng.randrange(99)}")
        for word in rng.sample(
            [
                "alpha",
                "beta",
                "gamma",
                "delta",
                "lease",
                "token",
                "retry",
                "fence",
                "window",
                "label",
                "chunk",
                "commit",
                "claim",
                "index",
                "store",
                "parse",
            ],
            12,
        )
    ] + [call("grep", "src/a.py:9: found", pattern="x")]


def long_thoughts(rng: Rng) -> list[Step]:
    return [
        think(f"{a}. That touches {t}: {b.lower()}.")
        for a, b, t in zip(
            rng.sample(FACTS, 14), rng.sample(FACTS, 14), rng.sample(TOPICS, 14), strict=True
        )
    ]


def proof_by_cases(rng: Rng) -> list[Step]:
    return [
        think(
            f"Case n = {n}: n squared is {n * n}, plus n is {n * n + n}, which is {(n * n + n) // 2} times 2, so it is even."
        )
        for n in range(3, 15)
    ]


def todo_list(rng: Rng) -> list[Step]:
    items = rng.sample(TOPICS, 8)
    out = []
    for n in range(8):
        marks = "\n".join(f"[{'x' if i < n else ' '}] {item}" for i, item in enumerate(items))
        out += [
            think(f"Plan:\n{marks}\nNow: {items[n]}"),
            call("search", prose(rng), query=items[n]),
        ]
    return out


def growing_file(rng: Rng) -> list[Step]:
    body, out = "# Report\n", []
    for fact in rng.sample(FACTS, 12):
        body += f"\n{fact}."
        out += [
            call("append", "ok", path="report.md", text=fact),
            call("read_file", body, path="report.md"),
        ]
    return out


def second_look(rng: Rng) -> list[Step]:
    steps = many_files(rng)[:9]
    return [*steps, steps[0], steps[4], *long_thoughts(rng)[:3], *many_files(rng)[12:16]]


def chat(rng: Rng) -> list[Step]:
    out = []
    for _ in range(8):
        out += [
            said("check again please"),
            call("stock_price", "ACME 41.20", symbol="ACME"),
            {"label": "PAUSE", "text": "It is at 41.20.", "calls": [], "results": []},
        ]
    return out


def chinese_research(rng: Rng) -> list[Step]:
    topics = [
        "电池回收",
        "海平面",
        "稻米价格",
        "高铁延误",
        "语言模型",
        "城市绿化",
        "古籍修复",
        "渔业配额",
        "桥梁检测",
        "冬小麦",
    ]
    out = []
    for n, topic in enumerate(topics):
        out += [
            think(f"下面查第{n + 1}个方面：{topic}，看看官方数据和研究报告怎么说。"),
            call(
                "search",
                f"{topic}：{rng.randrange(1990, 2026)}年为{rng.randrange(9999)}，其后变化{rng.randrange(90)}%。",
                query=f"{topic} 统计",
            ),
        ]
    return out


def batches(rng: Rng) -> list[Step]:
    return [
        batch(*(("read_file", {"path": f"d{n}/{f}"}, code(rng, 4)) for f in rng.sample(NAMES, 3)))
        for n in range(12)
    ]


def one_retry_each(rng: Rng) -> list[Step]:
    out = []
    for topic in rng.sample(TOPICS, 8):
        out += [
            call("fetch", "503 try later", "error", url=topic),
            call("fetch", prose(rng), url=topic),
        ]
    return out


def bisecting(rng: Rng) -> list[Step]:
    return [
        call("test_commit", rng.choice(["good", "bad"]), commit=f"{rng.getrandbits(40):010x}")
        for _ in range(14)
    ]


def halving(rng: Rng) -> list[Step]:
    low, high, out = 0, 1 << 12, []
    for _ in range(12):
        mid = (low + high) // 2
        out.append(call("probe", "too high" if mid > 1234 else "too low", value=mid))
        low, high = (low, mid) if mid > 1234 else (mid, high)
    return out


def one_shell(rng: Rng) -> list[Step]:
    commands = [
        "ls",
        "cat a",
        "cd src && ls",
        "git status",
        "git diff",
        "make",
        "make test",
        "pytest -x",
        "git add -A",
        "git commit -m wip",
        "mkdir out",
        "cp a b",
        "rm b",
        "touch c",
        "wc -l *",
        "grep -rn TODO",
    ]
    return [
        call("shell", "" if n % 2 else prose(rng, 1), command=c) for n, c in enumerate(commands)
    ]


def game(rng: Rng) -> list[Step]:
    return [
        call(
            "move",
            f"board: {rng.getrandbits(64):b} score {n * 3}",
            direction=rng.choice(["left", "right", "up", "down"]),
        )
        for n in range(24)
    ]


def sensor(rng: Rng) -> list[Step]:
    return [
        call(
            "read_sensor",
            f"temperature {20 + n * 0.3 + rng.random():.2f} C, humidity {rng.randrange(30, 70)} %",
            name="roof",
        )
        for n in range(16)
    ]


def task_queue(rng: Rng) -> list[Step]:
    out = []
    for n in range(12):
        room = rng.randrange(100, 999)
        out += [call("next_task", f"task {n}: clean room {room}"), call("complete", "ok", task=n)]
    return out


def regions(rng: Rng) -> list[Step]:
    out = []
    for n in range(9):
        for stage in ("build", "push", "verify"):
            out.append(call(stage, f"{stage} ok", region=f"r{n}"))
    return out


def translation(rng: Rng) -> list[Step]:
    return [call("save_translation", "saved", paragraph=n, text=prose(rng, 2)) for n in range(18)]


def form_filling(rng: Rng) -> list[Step]:
    return [call("fill", "ok", field=f"field_{n}", value=rng.choice(TOPICS)) for n in range(20)]


def pages_without_a_match(rng: Rng) -> list[Step]:
    word = rng.choice(NAMES)
    return [
        call("search_page", f"no matches for {word} here", text=word, page=n) for n in range(14)
    ] + [call("search_page", f"line 7: {word}", text=word, page=14)]


def blank_pages(rng: Rng) -> list[Step]:
    out = []
    for n in range(18):
        text = prose(rng, 3) if n % 6 == 0 else "(this page is left blank)"
        out.append(call("read_page", text, book="scan.pdf", page=n))
    return out


def ends_of_many_files(rng: Rng) -> list[Step]:
    return [
        call("read_file", "(end of file: nothing more)", path=f"logs/{name}", offset=0)
        for name in NAMES
    ]


def where_is_it(rng: Rng) -> list[Step]:
    # Fewer than the failures in a row that end a run by themselves.
    folders = ["", "src/", "etc/", "lib/", "config/", "app/", "home/", "opt/", "srv/", "var/"]
    return (
        fresh(rng, 4)
        + [
            call("read_file", "no such file", "error", path=f"{folder}settings.toml")
            for folder in rng.sample(folders, 4)
        ]
        + [call("read_file", code(rng), path="deploy/settings.toml")]
    )


def looking_upwards(rng: Rng) -> list[Step]:
    return fresh(rng, 3) + [
        call("read_file", "no such file", "error", path="../" * n + "pyproject.toml")
        for n in range(4)
    ] + [call("read_file", code(rng), path="../../../../pyproject.toml")]  # fmt: skip


HONEST = {f.__name__: f for f in (
    many_files, many_pages, edits_and_tests, polled_job, polled_with_waits, many_writes, searches_without_a_match,
    long_thoughts, proof_by_cases, todo_list, growing_file, second_look, chat, chinese_research, batches,
    one_retry_each, bisecting, halving, one_shell, game, sensor, task_queue, regions, translation, form_filling,
    pages_without_a_match, blank_pages, ends_of_many_files, where_is_it, looking_upwards,
)}  # fmt: skip


def transcripts() -> Iterator[dict[str, Any]]:
    for shape, make in LOOPS.items():
        for number in range(TIMES):
            rng = Rng(f"{shape} {number}")
            steps = fresh(rng, rng.randrange(0, 7))
            begins = len(steps)
            period, one_round = make(rng)
            for n in range(6):
                steps += one_round(n)
            yield {
                "name": f"{shape}-{number}",
                "kind": "loop",
                "shape": shape,
                "begins": begins,
                "period": period,
                "steps": steps,
            }
    for shape, make_all in HONEST.items():
        for number in range(TIMES):
            rng = Rng(f"{shape} {number}")
            yield {
                "name": f"{shape}-{number}",
                "kind": "honest",
                "shape": shape,
                "steps": make_all(rng),
            }


def main() -> None:
    lines = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in transcripts()]
    (HERE / "generated.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
