"""d2t and t2d: offsets, masks, and everything else that they have been taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.loader import load_head
from graft.drafters.eagle3.vocabulary import read_vocabulary
from tests.tiny_heads import Config, Tensors, tiny_facts, tiny_head, write_authors

IDS = torch.tensor([1, 5, 6, 11])
OFFSETS = IDS - torch.arange(4)
MASK = torch.isin(torch.arange(12), IDS)


def read(d2t: Tensor | None, t2d: Tensor | None, draft: int = 4, vocab: int = 12) -> list[int]:
    return read_vocabulary(d2t, t2d, draft, vocab).target_ids.tolist()


@pytest.mark.parametrize("mask", [MASK, MASK.long(), MASK.to(torch.uint8), None])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_offsets_are_added(mask: Tensor | None, dtype: torch.dtype) -> None:
    assert read(OFFSETS.to(dtype), mask) == IDS.tolist()


@given(st.permutations(range(12)), st.integers(1, 11))
def test_every_order_of_every_part_is_read(order: list[int], count: int) -> None:
    ids = torch.tensor(order[:count])
    mask = torch.isin(torch.arange(12), ids)
    assert read(ids - torch.arange(count), mask, count) == ids.tolist()


def test_a_whole_vocabulary_needs_no_tables() -> None:
    assert read(None, None, 12) == list(range(12))
    assert read(None, torch.ones(12).bool(), 12) == list(range(12))
    assert read(torch.zeros(12).long(), torch.ones(12).bool(), 12) == list(range(12))


def test_ids_are_read_as_ids_where_t2d_proves_it() -> None:
    found = read_vocabulary(IDS, MASK, 4, 12)
    assert found.target_ids.tolist() == IDS.tolist()
    assert "ids, not offsets" in found.notes[0]


@pytest.mark.parametrize(
    ("d2t", "t2d", "draft", "words"),
    [
        (None, None, 4, "has no d2t"),
        (None, MASK, 4, "has no d2t"),
        (None, MASK, 12, "t2d marks 4 tokens, but the head names all 12"),
        (
            OFFSETS[:3],
            MASK,
            4,
            r"d2t has shape \[3\], but config.json .* of 4 \(draft_vocab_size; ",
        ),
        (OFFSETS, MASK[:9], 4, r"t2d has shape \[9\], but config.json .* vocab_size of 12"),
        (OFFSETS.float(), MASK, 4, "d2t is stored as float32, but must .* restore the table"),
        (OFFSETS, MASK.long() * 2, 4, "other values than 0 and 1"),
        (OFFSETS + 1, None, 4, "target ids from 2 to 12, but the target has 0 to 11"),
        (OFFSETS - 2, None, 4, "target ids from -1 to 9"),
        (torch.tensor([3, 2, 0, -1]), None, 4, "2 target ids are named more than once"),
        (torch.tensor([0, 0, 0, 9]), MASK, 4, "target ids from 0 to 12"),
        (OFFSETS, ~MASK, 4, "disagrees with t2d on 12"),
        (torch.tensor([1, 5, 6, 11]), None, 4, "it may be a table of ids"),
        (torch.zeros(4).long(), MASK, 4, r"disagrees with t2d on \d+ .*all zeros"),
        (torch.zeros(4).long(), torch.zeros(12).bool(), 4, "all zeros"),
        (torch.zeros(4).long(), torch.ones(12).bool(), 4, "all zeros"),
    ],
)
def test_wrong_tables_are_refused(
    d2t: Tensor | None, t2d: Tensor | None, draft: int, words: str
) -> None:
    with pytest.raises(HeadError, match=words):
        read(d2t, t2d, draft)


def test_doubtful_tables_get_a_note() -> None:
    zeros = read_vocabulary(torch.zeros(4).long(), None, 4, 12)
    rising = read_vocabulary(torch.tensor([1, 2, 3, 5]), None, 4, 12)
    assert "all zeros" in zeros.notes[0]
    assert "rises with every entry" in rising.notes[0]
    assert not read_vocabulary(OFFSETS, MASK, 4, 12).notes


def test_a_loaded_head_drafts_the_tokens_that_were_trained(tmp_path: Path) -> None:
    written = tiny_head(1)
    write_authors(tmp_path, written)
    assert torch.equal(load_head(tmp_path, tiny_facts()).head.target_ids, written.target_ids)


def test_a_wrong_table_is_said_to_be_in_its_folder(tmp_path: Path) -> None:
    def rounded(_: Config, tensors: Tensors) -> None:
        tensors["d2t"] = tensors["d2t"].half()

    write_authors(tmp_path, tiny_head(1), edit=rounded)
    with pytest.raises(HeadError) as caught:
        load_head(tmp_path, tiny_facts())
    assert str(caught.value).startswith(f"{tmp_path}: d2t is stored as float16")


def test_control_an_identity_table_is_caught(tmp_path: Path) -> None:
    def identity(_: Config, tensors: Tensors) -> None:
        tensors["d2t"] = torch.zeros_like(tensors["d2t"])

    write_authors(tmp_path, tiny_head(1), edit=identity)
    with pytest.raises(HeadError, match="all zeros"):
        load_head(tmp_path, tiny_facts())


def test_a_reduced_vocabulary_without_its_table_is_caught(tmp_path: Path) -> None:
    def forget(_: Config, tensors: Tensors) -> None:
        del tensors["d2t"]

    write_authors(tmp_path, tiny_head(1), edit=forget)
    with pytest.raises(HeadError, match="names 64 of the target's 256 tokens"):
        load_head(tmp_path, tiny_facts())
