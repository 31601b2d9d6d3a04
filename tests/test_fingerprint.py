"""The fingerprint of a tokenizer: what changes it and what does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import AutoTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast

from graft.fingerprint import tokenizer_fingerprint
from tests.fakes import BYTE_VOCAB, CHAT_TEMPLATE, byte_tokenizer

WORDS = ["a", "b", "c", "d", "e", "f"]
MERGED = [("a", "b"), ("c", "d"), ("a", "c")]


def fast(
    letters: list[str] = WORDS,
    merges: list[tuple[str, str]] = MERGED,
    change: Callable[[Tokenizer], object] = lambda backend: None,
) -> Any:
    """A tokenizer with a few merges and one special token."""
    pieces = [*letters, *("".join(pair) for pair in sorted(merges))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>"])
    change(backend)
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=backend, bos_token="<s>")


def fingerprint(tokenizer: Any, token_count: int = 10) -> str:
    return tokenizer_fingerprint(tokenizer, token_count)


def reloaded(tokenizer: Any, folder: Path) -> Any:
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_it_is_short_and_the_same_for_the_same_tokenizer() -> None:
    first = fingerprint(fast())
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert fingerprint(fast()) == first


@pytest.mark.parametrize("make", [fast, byte_tokenizer])
def test_it_survives_saving(make: Callable[[], Any], tmp_path: Path) -> None:
    once = reloaded(make(), tmp_path / "once")
    assert fingerprint(once) == fingerprint(make())
    assert fingerprint(reloaded(once, tmp_path / "twice")) == fingerprint(make())


def test_files_made_before_stay_good() -> None:
    """Another digest here means that users' files are refused: only on purpose."""
    assert fingerprint(fast()) == "91ead8436596237e"


@settings(max_examples=30, deadline=None)
@given(st.permutations(WORDS))
def test_any_permutation_of_the_vocabulary_changes_it(letters: list[str]) -> None:
    assert (fingerprint(fast(letters)) == fingerprint(fast())) == (letters == WORDS)


def set_normalizer(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Lowercase()


def set_pre_tokenizer(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)


def set_decoder(backend: Tokenizer) -> None:
    backend.decoder = decoders.Fuse()


def set_ignore_merges(backend: Tokenizer) -> None:
    backend.model.ignore_merges = True


def add_token(backend: Tokenizer) -> None:
    backend.add_tokens(["<new>"])


def add_special_token(backend: Tokenizer) -> None:
    backend.add_special_tokens(["<new>"])


def add_stripping_token(backend: Tokenizer) -> None:
    backend.add_tokens([AddedToken("a", lstrip=True)])


@pytest.mark.parametrize(
    "change",
    [
        set_normalizer,
        set_pre_tokenizer,
        set_decoder,
        set_ignore_merges,
        add_token,
        add_special_token,
        add_stripping_token,
    ],
)
def test_what_turns_text_into_ids_changes_it(change: Callable[[Tokenizer], None]) -> None:
    assert fingerprint(fast(change=change)) != fingerprint(fast())


def test_merges_and_their_order_change_it() -> None:
    prints = {fingerprint(fast(merges=merges)) for merges in (MERGED, MERGED[::-1], MERGED[:2])}
    assert len(prints) == 3


def test_the_number_of_ids_changes_it() -> None:
    assert fingerprint(fast(), 9) != fingerprint(fast(), 10)


def pad(tokenizer: Any) -> None:
    tokenizer.pad_token = "<s>"
    tokenizer.padding_side = "left"
    tokenizer(["a b", "a"], padding="max_length", truncation=True, max_length=3)


def give_template(tokenizer: Any) -> None:
    tokenizer.chat_template = CHAT_TEMPLATE


def shorten(tokenizer: Any) -> None:
    tokenizer.model_max_length = 7


def surround(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )


def use(tokenizer: Any) -> None:
    tokenizer("a b c")
    tokenizer.decode([1, 2])


@pytest.mark.parametrize("change", [pad, give_template, shorten, surround, use])
def test_what_leaves_ids_as_they_are_does_not_change_it(
    change: Callable[[Any], None], tmp_path: Path
) -> None:
    tokenizer = fast()
    before = fingerprint(tokenizer)
    change(tokenizer)
    assert fingerprint(tokenizer) == before
    assert fingerprint(reloaded(tokenizer, tmp_path)) == before


def test_scores_of_a_unigram_model_change_it() -> None:
    def unigram(score: float) -> Any:
        made: Any = PreTrainedTokenizerFast
        model = models.Unigram([("<unk>", 0.0), ("a", -1.0), ("aa", score)], unk_id=0)
        return made(tokenizer_object=Tokenizer(model))

    assert fingerprint(unigram(-1.5)) == fingerprint(unigram(-1.5))
    assert fingerprint(unigram(-1.5)) != fingerprint(unigram(-2.5))


class Letters(PreTrainedTokenizer):
    """A tokenizer written in Python: a token per letter."""

    def __init__(self, letters: str = "abcdef", lower: bool = False, **options: Any) -> None:
        self.letters = letters
        self.lower = lower
        super().__init__(unk_token="<unk>", **options)  # type: ignore[no-untyped-call]

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    def get_vocab(self) -> dict[str, int]:
        return {letter: i for i, letter in enumerate(self.letters)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return list(text.lower() if self.lower else text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.letters.find(token) % (len(self.letters) + 1)

    def _convert_id_to_token(self, index: int) -> str:
        return self.letters[index]


def test_python_tokenizers_have_one_too() -> None:
    first = fingerprint(Letters())
    assert fingerprint(Letters()) == first
    assert fingerprint(Letters("abcdfe")) != first
    assert fingerprint(Letters(lower=True)) != first  # the same vocabulary; seen by the samples
    grown = Letters()
    grown.add_tokens(["<new>"])
    assert fingerprint(grown) != first


def test_the_stored_form_has_the_parts_it_reads() -> None:
    stored = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    parts = {"version", "truncation", "padding", "post_processor", "added_tokens"}
    assert set(stored) - parts == {"normalizer", "pre_tokenizer", "model", "decoder"}
    assert len(stored["model"]["vocab"]) == BYTE_VOCAB
