"""The draft vocabulary: which token of the target each row of the head's lm_head names.

Checkpoints hold it as d2t, a table of *offsets*: target id = draft id + d2t[draft id], and as
t2d, a mask over the target's vocabulary. Where both are there they must tell the same; a table
that is taken for something else drafts wrong tokens and says nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from graft.drafters.eagle3.errors import HeadError

_RULE = "d2t holds offsets: target id = draft id + d2t[draft id]"


class Vocabulary(NamedTuple):
    """int64 [draft_vocab_size] target ids, and notes."""

    target_ids: Tensor
    notes: list[str]


def read_vocabulary(
    d2t: Tensor | None, t2d: Tensor | None, draft_vocab_size: int, vocab_size: int
) -> Vocabulary:
    """The target ids of all draft ids.

    Args:
        d2t: offsets [draft_vocab_size]; None if the checkpoint has none.
        t2d: mask [vocab_size]; None if the checkpoint has none.

    Raises:
        HeadError: if the tables are missing, have another shape, name tokens that do not exist or
            one token twice, or disagree.
    """
    if draft_vocab_size > vocab_size:
        raise HeadError(
            f"draft_vocab_size {draft_vocab_size} is above vocab_size {vocab_size}; the draft "
            "vocabulary is a part of the target's"
        )
    mask = None if t2d is None else _mask(t2d, vocab_size)
    if d2t is None:
        return _whole(mask, draft_vocab_size, vocab_size)
    table = _table(d2t, draft_vocab_size)
    ids = torch.arange(draft_vocab_size) + table
    fault = _fault(ids, mask, vocab_size)
    if fault is None:
        return Vocabulary(ids, _remarks(table, mask, vocab_size))
    if _fault(table, mask, vocab_size) is None:
        if mask is not None:
            return Vocabulary(table, ["d2t holds target ids, not offsets, as t2d proves: so read"])
        fault += "; its values would do as target ids, so it may be a table of ids"
    raise HeadError(f"d2t is wrong: {fault}. {_RULE}; restore the table of this head's training")


def _whole(mask: Tensor | None, draft_vocab_size: int, vocab_size: int) -> Vocabulary:
    if draft_vocab_size < vocab_size:
        raise HeadError(
            f"the head names {draft_vocab_size} of the target's {vocab_size} tokens, but the "
            f"checkpoint has no d2t that says which. {_RULE}; add the table of this head's training"
        )
    if mask is not None and not bool(mask.all()):
        raise HeadError(
            f"t2d marks {int(mask.sum())} tokens, but the head names all {vocab_size} and has no "
            "d2t; restore the tables of this head's training"
        )
    return Vocabulary(torch.arange(vocab_size), [])


def _table(d2t: Tensor, draft_vocab_size: int) -> Tensor:
    if d2t.shape != (draft_vocab_size,):
        raise HeadError(
            f"the tensor d2t has shape {list(d2t.shape)}, but config.json states a draft "
            f"vocabulary of {draft_vocab_size} (draft_vocab_size; without it vocab_size), and d2t "
            "has one offset for each of its tokens; correct the one that is wrong"
        )
    if d2t.is_floating_point() or d2t.dtype == torch.bool:
        kind = str(d2t.dtype).removeprefix("torch.")
        raise HeadError(
            f"d2t is stored as {kind}, but must hold whole numbers: {kind} may have rounded them; "
            "restore the table of this head's training, as int64"
        )
    return d2t.to("cpu", torch.int64)


def _mask(t2d: Tensor, vocab_size: int) -> Tensor:
    if t2d.shape != (vocab_size,):
        raise HeadError(
            f"the tensor t2d has shape {list(t2d.shape)}, but config.json states a vocab_size of "
            f"{vocab_size}, and t2d has one mark for each token of the target; correct the one "
            "that is wrong"
        )
    values = t2d.to("cpu")
    if values.dtype != torch.bool and not bool(((values == 0) | (values == 1)).all()):
        raise HeadError(
            "t2d holds other values than 0 and 1; it must mark the tokens of the head; restore the "
            "table of this head's training"
        )
    return values.to(torch.bool)


def _fault(ids: Tensor, mask: Tensor | None, vocab_size: int) -> str | None:
    """What is wrong with target ids."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        return (
            f"it leads to target ids from {low} to {high}, but the target has 0 to {vocab_size - 1}"
        )
    counts = torch.bincount(ids, minlength=vocab_size)
    if int(counts.max()) > 1:
        return f"{int((counts > 1).sum())} target ids are named more than once"
    if mask is None:
        return None
    wrong = (counts > 0) != mask
    if not bool(wrong.any()):
        return None
    zero = " (d2t is all zeros)" if torch.equal(ids, torch.arange(len(ids))) else ""
    return f"it disagrees with t2d on {int(wrong.sum())} of the target's tokens{zero}"


def _remarks(table: Tensor, mask: Tensor | None, vocab_size: int) -> list[str]:
    if mask is not None or len(table) == vocab_size:
        return []
    if bool((table.diff() > 0).all()) and len(table) > 1:
        return [
            "d2t rises with every entry, as target ids do and offsets seldom; no t2d proves it: if "
            "acceptance is low, it holds ids"
        ]
    if not bool(table.any()):
        return [
            f"d2t is all zeros: the head names the first {len(table)} tokens of the target; if "
            "acceptance is low, the table was never filled"
        ]
    return []
