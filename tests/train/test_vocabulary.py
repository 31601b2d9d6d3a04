"""The draft vocabulary, by hand."""

from __future__ import annotations

import pytest

from graft.train.vocabulary import choose_vocabulary, coverage
from tests.train.making import answer

ANSWERS = [answer(answer_ids=[5, 5, 5, 9, 9, 2]), answer(answer_ids=[5, 7])]


def test_the_most_frequent_tokens_ascending() -> None:
    assert choose_vocabulary(ANSWERS, 2, 20).tolist() == [5, 9]


def test_of_equally_frequent_ones_the_lower() -> None:
    assert choose_vocabulary(ANSWERS, 3, 20).tolist() == [2, 5, 9]
    assert choose_vocabulary(ANSWERS, 6, 20).tolist() == [0, 1, 2, 5, 7, 9]


def test_tokens_that_end_a_text_are_always_in() -> None:
    assert choose_vocabulary(ANSWERS, 2, 20, always=[19]).tolist() == [5, 19]


def test_not_more_than_there_are() -> None:
    assert choose_vocabulary(ANSWERS, 99, 20).tolist() == list(range(20))


def test_coverage_counts_tokens() -> None:
    assert coverage(ANSWERS, [5, 9]) == pytest.approx(6 / 8)
    assert coverage([], [5]) == 0
