"""The page: its data is the trace, and nothing a model says becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from graft.pruning import DraftPlan, dense
from graft.trace import Trace
from graft.trace_page import is_trace_page, render
from tests import traces
from tests.traces import sample

NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>&lt;\u2028\u2029\x00\\",
    "</SCRIPT\n>",
    "@TRACE@",
    "@SCRIPT_HASH@",
    "\u202eevil",
    "𓀀🏞\ufe0f نهر 河",
)


class Page(HTMLParser):
    """What a browser's parser would see: elements with their attributes, and texts by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[-1] += data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        found = zip(self.elements, self.texts, strict=True)
        return [(attributes, text) for (name, attributes), text in found if name == tag]

    def data(self) -> dict[str, Any]:
        """The JSON block."""
        (text,) = [t for a, t in self.all("script") if a.get("type") == "application/json"]
        loaded: dict[str, Any] = json.loads(text)
        return loaded


def check_same(data: dict[str, Any], trace: Trace) -> None:
    """The data of a page, against the trace."""
    committed = [data["first"], *(c for r in data["rounds"] for c in r["committed"])]
    assert "".join(text for _, text, _ in committed) == trace.result.text
    assert [token for token, _, _ in committed] == trace.result.token_ids
    assert [s for _, _, s in committed] == [s.name.lower() for s in trace.result.sources]
    for kept, traced in zip(data["rounds"], trace.rounds, strict=True):
        nodes, names = traced.nodes, data["sources"]
        assert kept["tokens"] == [n.token for n in nodes]
        assert kept["parents"] == [n.parent for n in nodes]
        assert [names[int(s)] for s in kept["sources"]] == [n.source for n in nodes]
        assert [data["texts"][str(t)] for t in kept["tokens"]] == [n.text for n in nodes]
        assert kept["accepted"] == [i for i, n in enumerate(nodes) if n.accepted]
        known = kept["probabilities"] or [None] * len(nodes)
        assert known == [
            None if n.probability is None else pytest.approx(n.probability, rel=1e-3) for n in nodes
        ]
        assert kept["trimmed"] == traced.trimmed
        assert kept["record"]["stage"] == traced.record.stage
        assert kept["record"]["redirected"] == traced.record.redirected
        assert kept["record"]["times"]["verify"] == pytest.approx(
            traced.record.times.verify, abs=1e-6
        )
        plan = data["plans"][kept["plan"]]
        assert tuple(plan["thresholds"]) == traced.plan.thresholds
        assert traced.record.stage in plan["stages"]
    assert data["stats"]["tau"] == trace.result.stats.tau


@pytest.mark.parametrize("plan", [traces.PLAN, dense(16, 4, 4), dense(8, 4, 4, kept=0)])
def test_the_page_holds_the_generation(plan: DraftPlan) -> None:
    trace = sample(60, seed=2, plan=plan)
    check_same(Page(render(trace)).data(), trace)


def test_the_check_can_fail() -> None:
    trace, other = sample(60, seed=2), sample(60, seed=3)
    with pytest.raises(AssertionError):
        check_same(Page(render(trace)).data(), other)


def test_no_text_becomes_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Page(render(sample(60, prompt="hi")))
    words = tuple(NASTY[i % len(NASTY)] + str(i) for i in range(len(traces.WORDS)))
    monkeypatch.setattr(traces, "WORDS", words)
    trace = sample(60, prompt="".join(NASTY))
    page = Page(render(trace))
    assert page.elements == plain.elements
    assert page.data()["prompt"] == trace.prompt
    check_same(page.data(), trace)
    for each in NASTY:
        assert each in trace.result.text  # else this shows nothing


def test_an_unescaped_page_would_be_noticed() -> None:
    page = render(sample(20, prompt="QQQ"))
    assert Page(page.replace("QQQ", NASTY[0])).elements != Page(page).elements


def test_the_page_is_ascii_where_models_speak() -> None:
    page = render(sample(60))
    block = page[page.index('id="trace">') : page.index("</script>")]
    assert block.isascii()
    assert "<" not in block


def test_the_page_needs_nothing_else() -> None:
    text = render(sample(20))
    page = Page(text)
    for _, attributes in page.elements:
        assert not {"src", "href", "srcset", "action", "onclick", "onload"} & set(attributes)
    bare = text.replace("http://www.w3.org/2000/svg", "")  # a name, not a place
    assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttp|innerHTML", bare)


def test_the_policy_allows_its_own_script_and_style_alone() -> None:
    page = Page(render(sample(20)))
    (policy,) = [a["content"] for a, _ in page.all("meta") if "http-equiv" in a]
    ((_, style),) = page.all("style")
    (script,) = [t for a, t in page.all("script") if not a]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for name, body in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_a_long_generation_stays_small() -> None:
    trace = sample(1400, seed=1)
    assert len(trace.rounds) > 450
    assert len(render(trace)) < 5_000_000


def test_an_answer_of_one_token_has_a_page() -> None:
    data = Page(render(sample(1))).data()
    assert data["rounds"] == data["plans"] == []
    assert data["budget"] == 0


def test_a_page_is_known_by_its_beginning() -> None:
    assert is_trace_page(render(sample(1)).encode()[:1024])
    assert not is_trace_page(b"<!DOCTYPE html><title>graft trace</title>")
    assert not is_trace_page(b"")


def test_every_name_that_the_script_reads_is_in_the_data() -> None:
    text = render(sample(60))
    data = Page(text).data()
    script = text[text.rindex("<script>") :]
    for pattern, known in (
        (r"\btrace\.(\w+)", data),
        (r"\bstats\.(\w+)", data["stats"]),
        (r"\bround\.(\w+)", data["rounds"][0]),
        (r"\brecord\.(\w+)", data["rounds"][0]["record"]),
    ):
        names = set(re.findall(pattern, script))
        assert names
        assert names <= set(known), pattern
