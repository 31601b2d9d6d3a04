"""Rows of a call: when they end, what criteria are asked, how they are filled."""

from __future__ import annotations

import torch
from torch import Tensor

from graft.integrations.hf_rows import Crowd, EndRule, Prompt, Row, pad_right
from graft.request import Drawn
from graft.sampling_params import SamplingParams
from graft.tree import Source

PROMPT = Prompt(0, torch.tensor([[0, 0, 5, 6]]), 2)


class _Ends:
    """Ends at a token; notes what it was asked."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.asked: list[list[int]] = []

    def __call__(self, ids: Tensor, scores: tuple[Tensor, ...] | None) -> Tensor:
        self.asked.append(ids[0].tolist())
        return ids[:, -1] == self.token


def _row(rule: EndRule, number: int = 0, limit: int = 9) -> Row:
    params = SamplingParams(max_new_tokens=limit)
    return Row(
        number, PROMPT.ids, params, 0, number, frozenset({99}), limit, lambda _: "", rule=rule
    )


def _block(*tokens: int) -> list[Drawn]:
    return [Drawn(token, Source.RETRIEVED, None) for token in tokens]


def test_a_prompt_knows_its_tokens_and_shows_its_padding() -> None:
    assert PROMPT.ids == [5, 6]
    assert PROMPT.restore(torch.tensor([[5, 6, 7]])).tolist() == [[0, 0, 5, 6, 7]]


def test_a_rule_asks_about_each_token_once_and_none_behind_the_end() -> None:
    criterion = _Ends(8)
    rule = EndRule([criterion], PROMPT)
    assert not rule.ends([7])
    assert rule.ends([7, 8, 9])
    assert not rule.ends([7])  # what is known of a beginning stays
    assert rule.ends([7, 8])
    assert rule.ends([7, 8, 3, 4])
    assert criterion.asked == [[0, 0, 5, 6, 7], [0, 0, 5, 6, 7, 8]]


def test_a_rule_hands_over_the_scores_so_far() -> None:
    scores = [torch.tensor([[1.0]]), torch.tensor([[2.0]])]
    seen: list[int] = []

    def criterion(ids: Tensor, scores: tuple[Tensor, ...] | None) -> bool:
        seen.append(-1 if scores is None else len(scores))
        return False

    EndRule([criterion], PROMPT, scores).ends([3, 4])
    EndRule([criterion], PROMPT).ends([3])
    assert seen == [1, 2, -1]


def test_a_row_ends_in_the_middle_of_a_block() -> None:
    row = _row(EndRule([_Ends(8)], PROMPT))
    assert [token.finish_reason for token in row.take(_block(7, 8, 9))] == [None, "stop"]
    assert (row.output, row.trimmed, row.finish_reason) == ([7, 8], 1, "stop")


def test_end_tokens_and_limits_hold_beside_criteria() -> None:
    row = _row(EndRule([_Ends(8)], PROMPT))
    row.take(_block(7, 99, 8))
    assert (row.output, row.finish_reason) == ([7, 99], "stop")
    row = _row(EndRule([_Ends(8)], PROMPT), limit=2)
    row.take(_block(7, 6, 8))
    assert (row.output, row.finish_reason) == ([7, 6], "length")


def test_rows_of_a_crowd_end_with_the_last() -> None:
    crowd = Crowd(2)
    prompts = [PROMPT, PROMPT._replace(number=1)]
    fast, slow = (
        _row(EndRule([_Ends(8)], prompt, crowd=crowd), prompt.number) for prompt in prompts
    )
    fast.take(_block(1, 2, 8, 3))  # its third token would end it
    assert not fast.finished
    slow.take(_block(8))
    assert not crowd.over(1)  # the second row still lacks two tokens
    assert crowd.over(3)
    assert not slow.finished
    slow.take(_block(4, 5, 6))
    assert (slow.output, slow.trimmed, slow.finished) == ([8, 4, 5], 1, True)
    fast.cut(crowd.last)
    assert (fast.output, fast.trimmed, fast.finish_reason) == ([1, 2, 8], 1, "stop")


def test_a_limit_counts_as_an_end_in_a_crowd() -> None:
    crowd = Crowd(1)
    row = _row(EndRule([_Ends(8)], PROMPT, crowd=crowd), limit=2)
    row.take(_block(1, 2, 3))
    assert row.finish_reason == "length"
    assert crowd.over(2)


def test_outputs_are_filled_at_the_right() -> None:
    out = pad_right([[1], [2, 3, 4]], 17, torch.zeros(2, 4))
    assert out.tolist() == [[1, 17, 17], [2, 3, 4]]
    assert out.dtype == torch.int64
