"""Learning a matrix from a corpus, by running the target over it.

Every token of the corpus has its row written from the target's logits after it, as in decoding;
the last occurrence wins. So a row says what the *model* holds likely, not what the corpus says.

Invariant: the same documents in the same order give the same matrix. The engine's own matrix is
left alone. It does not know files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from graft.corpus import Document
from graft.engine import Engine
from graft.matrix import EMPTY, AdjacencyMatrix

__all__ = ["WINDOW", "BuildReport", "build_matrix"]

WINDOW: Final = 1024  # tokens per context: bounds the cache [ours]


@dataclass(frozen=True)
class BuildReport:
    """How learning went.

    Attributes:
        matrix: what was learnt.
        tokens: tokens the target was run over.
        rows: rows of the matrix that hold a successor now.
        seconds: wall clock.
    """

    matrix: AdjacencyMatrix
    tokens: int
    rows: int
    seconds: float


def build_matrix(
    engine: Engine,
    documents: Iterable[str | Document],
    *,
    matrix: AdjacencyMatrix | None = None,
    limit_tokens: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> BuildReport:
    """Learn a matrix from texts.

    Texts are encoded as they are, chat messages by the chat template; both are cut into windows
    of at most `WINDOW` tokens, each a context of its own.

    Args:
        engine: its target and tokenizer are used; what its cache held is forgotten.
        documents: texts, or documents of `graft.corpus`; taken one at a time.
        matrix: where to learn, for the engine's tokens; a new one with the engine's k if None.
        limit_tokens: stop after so many tokens; None reads all.
        on_progress: called with the tokens so far, after each window.

    Raises:
        ValueError: for text that cannot be encoded for this model, or a limit below 1.
        RuntimeError: if the engine is in the middle of a generation.
    """
    if limit_tokens is not None and limit_tokens < 1:
        raise ValueError(f"limit_tokens={limit_tokens}: an integer from 1 on is supported")
    if matrix is None:
        matrix = AdjacencyMatrix(engine.token_count, engine.settings.k, engine.target.device)
    start, tokens = time.perf_counter(), 0
    size = min(WINDOW, engine.target.max_context or WINDOW)
    observe = _observer(matrix)
    with engine.borrow_target() as target, torch.inference_mode():
        for window in _limited(_windows(engine, documents, size), limit_tokens):
            target.open(1, size)
            target.prefill(0, torch.tensor(window, device=target.device), observe)
            tokens += len(window)
            if on_progress is not None:
                on_progress(tokens)
    rows = int((matrix.ids[: matrix.token_count, 0] != EMPTY).sum())  # waits for the device
    return BuildReport(matrix, tokens, rows, time.perf_counter() - start)


def _observer(matrix: AdjacencyMatrix) -> Callable[[Tensor, Tensor], None]:
    def observe(tokens: Tensor, logits: Tensor) -> None:
        order = torch.arange(len(tokens), device=tokens.device)  # the last occurrence wins
        matrix.write(tokens, matrix.best(logits), order)

    return observe


def _limited(windows: Iterator[list[int]], limit: int | None) -> Iterator[list[int]]:
    left = limit
    for window in windows:
        yield window if left is None else window[:left]
        if left is not None:
            left -= len(window)
            if left <= 0:  # not one document more is read
                return


def _windows(engine: Engine, documents: Iterable[str | Document], size: int) -> Iterator[list[int]]:
    for number, given in enumerate(documents, 1):
        document = Document(given, f"text {number}") if isinstance(given, str) else given
        ids = _encode(document, engine.tokenizer)
        if ids and not 0 <= max(ids) < engine.token_count:
            raise ValueError(
                f"{document.place} has the token id {max(ids)}, but {engine.name} has ids 0 to "
                f"{engine.token_count - 1}: is the tokenizer the model's?"
            )
        # Many models go astray in a text that does not begin with their first token.
        lead = ids[:1] if ids[:1] == [engine.tokenizer.bos_token_id] and size > 1 else []
        step = size - len(lead)
        for at in range(len(lead), len(ids), step):
            yield lead + ids[at : at + step]


def _encode(document: Document, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    text, options = document.content, {}
    if not isinstance(text, str):
        text, options = _rendered(document, tokenizer), {"add_special_tokens": False}
    # Not verbose: texts beyond the context are cut here.
    ids: list[int] = tokenizer(text, verbose=False, **options)["input_ids"]
    return ids


def _rendered(document: Document, tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        raise ValueError(
            f"{document.place} holds chat messages, but this model has no chat template: give it "
            "texts"
        )
    messages: list[Any] = [dict(message) for message in document.content]  # type: ignore[arg-type]
    asked = messages[-1]["role"] != "assistant"  # else the answer is there already
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asked)
        )
    except Exception as error:  # templates are programs and raise what they like
        raise ValueError(
            f"{document.place}: the model's chat template does not take these messages: {error}"
        ) from error
