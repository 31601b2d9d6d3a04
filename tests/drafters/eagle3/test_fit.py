"""A head for another target is refused: other widths, vocabulary or tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from graft.drafters.eagle3.loader import load_head
from graft.fingerprint import tokenizer_fingerprint
from tests.drafters.eagle3.edits import drop, fields, refused
from tests.tiny_files import tiny_tokenizer
from tests.tiny_heads import Config, tiny_facts, tiny_head, write_authors, write_specforge


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"hidden_size": 128}, "features of width 64, but tiny has 128"),
        ({"vocab_size": 300, "token_count": 290}, "a vocabulary of 256 tokens, but tiny has 300"),
        ({"vocab_size": 4096, "token_count": 250}, "a vocabulary of 256 tokens, but tiny has 4096"),
    ],
)
def test_another_target_is_refused(facts: Config, words: str, tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head())
    refused(tmp_path, words, **facts)


def test_a_narrow_head_needs_embeddings_of_its_own(tmp_path: Path) -> None:
    head = tiny_head(hidden_size=32, own_embeddings=True)
    write_authors(tmp_path, head, edit=drop("embed_tokens.weight"))
    refused(tmp_path, "no embeddings of its own and a width of 32", "embed_tokens.weight")


def test_padding_of_the_vocabulary_is_no_mismatch(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head())
    report = load_head(tmp_path, tiny_facts(vocab_size=320, token_count=250)).report
    assert any("both padded over 250 tokens" in note for note in report.notes)


def test_draft_tokens_that_are_padding_are_counted(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head(draft_vocab_size=256))
    report = load_head(tmp_path, tiny_facts(token_count=250)).report
    assert any("6 draft tokens are padding" in note for note in report.notes)


def test_another_tokenizers_fingerprint_is_refused(tmp_path: Path) -> None:
    mark = {"target": "org/other", "tokenizer_fingerprint": "a" * 16}
    write_specforge(tmp_path, tiny_head(), edit=fields(graft=mark))
    refused(tmp_path, "another tokenizer", "org/other", fingerprint="b" * 16)
    assert load_head(tmp_path, tiny_facts(fingerprint="a" * 16)).report.made_for == "org/other"
    assert load_head(tmp_path, tiny_facts(fingerprint=None)).report.fingerprint == "a" * 16


def test_a_tokenizer_beside_the_head_is_compared(tmp_path: Path) -> None:
    write_authors(tmp_path, tiny_head())
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    mine = tokenizer_fingerprint(tokenizer, 255)
    assert load_head(tmp_path, tiny_facts(fingerprint=mine)).report.fingerprint == mine
    refused(tmp_path, "another tokenizer", fingerprint="b" * 16)
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "tokenizer_config.json").unlink()
    notes = load_head(tmp_path, tiny_facts(fingerprint=mine)).report.notes
    assert any("cannot be read" in note for note in notes)
