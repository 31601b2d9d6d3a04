"""load_head: from a checkpoint's name to an `Eagle3Head` that fits a target, or a clear refusal.

    files -> kind -> format -> names and shapes -> vocabulary -> target -> head

Invariant: a head that is returned has every tensor of its checkpoint and no other, drafts only
tokens that the target's tokenizer knows, and reads features of the width and from the layers that
it was trained with. Nothing is guessed in silence: what was assumed stands in the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graft.drafters.eagle3.checkpoint import find_folder, read_checkpoint
from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.fit import check_fit
from graft.drafters.eagle3.formats import pick
from graft.drafters.eagle3.formats.base import UNKNOWN_LAYERS, spelling
from graft.drafters.eagle3.head import Eagle3Head
from graft.drafters.eagle3.kinds import check_kind
from graft.drafters.eagle3.origin import read_origin
from graft.drafters.eagle3.report import HeadReport, digest_of, dtype_name, rope_text
from graft.drafters.eagle3.strict import check_tensors, empty_head
from graft.drafters.eagle3.vocabulary import read_vocabulary

__all__ = ["HeadError", "LoadedHead", "TargetFacts", "inspect_head", "load_head", "read_checkpoint"]


@dataclass(frozen=True)
class LoadedHead:
    """A head in evaluation mode on its device, and what is known of it."""

    head: Eagle3Head
    report: HeadReport


@dataclass(frozen=True)
class _Understood:
    config: Eagle3Config
    state: dict[str, Tensor]  # weights in the head's names, as stored
    target_ids: Tensor
    report: HeadReport


def load_head(
    path: str | Path,
    target: TargetFacts,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    name: str | None = None,
) -> LoadedHead:
    """Load an EAGLE-3 head for a target.

    Args:
        path: a folder or a hub id "org/name".
        target: the target's numbers.
        dtype: of the weights; None keeps the stored one.
        device: where they go.
        name: how messages call the head; `path` if None.

    Raises:
        HeadError: if the checkpoint cannot be read, is no EAGLE-3 head, is incomplete, asks for
            what is not supported, or does not fit the target.
    """
    found = _understand(path, target, name)
    weights = {k: t.to(dtype or t.dtype) for k, t in found.state.items()}
    head = empty_head(found.config)
    head.load_state_dict({**weights, "target_ids": found.target_ids}, strict=True, assign=True)
    # Not to(dtype): that would round the rotary table too.
    head = head.to(device).eval().requires_grad_(False)
    return LoadedHead(head, found.report)


def inspect_head(path: str | Path, target: TargetFacts | None = None) -> HeadReport:
    """What `load_head` would understand, without building the head.

    Without a target the head is checked by itself: files, tensors, vocabulary.

    Raises:
        HeadError: as `load_head`.
    """
    return _understand(path, target).report


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Converters and tables do not know whose they are: put the head's name in front."""
    try:
        yield
    except HeadError as error:
        raise HeadError(f"{name}: {error}") from error


def _understand(
    path: str | Path, target: TargetFacts | None, name: str | None = None
) -> _Understood:
    folder, name = find_folder(path), name or str(path)
    checkpoint = read_checkpoint(folder)
    notes = check_kind(checkpoint.config, checkpoint.state, name)
    with _named(name):
        form = pick(checkpoint.config, checkpoint.state.keys())
        made = form.convert(checkpoint.config, checkpoint.state, target)
    state, config = dict(made.state), made.config
    tables = state.pop("d2t", None), state.pop("t2d", None)
    check_tensors(empty_head(config), state, name, spelling(checkpoint.state))
    with _named(name):
        target_ids, remarks = read_vocabulary(*tables, config.draft_vocab_size, config.vocab_size)
    notes += [*made.notes, *remarks]
    origin = read_origin(checkpoint.config, folder, None if target is None else target.token_count)
    notes += [origin.note] if origin.note else []
    if target is not None:
        notes += check_fit(config, target_ids, target, name, origin)
    report = HeadReport(
        path=name,
        format=form.NAME,
        config=config,
        parameters=sum(t.numel() for t in state.values()),
        bytes=sum(t.numel() * t.element_size() for t in checkpoint.state.values()),
        dtype=dtype_name(state),
        draft_vocab_size=config.draft_vocab_size,
        draft_share=config.draft_vocab_size / config.vocab_size,
        own_embeddings=config.own_embeddings,
        feature_layers=None if config.feature_layers == UNKNOWN_LAYERS else config.feature_layers,
        written_layers=made.written_layers,
        rope=rope_text(config.rope_parameters),
        trained_length=config.max_position_embeddings,
        digest=digest_of(state, target_ids),
        made_for=origin.target,
        fingerprint=origin.fingerprint,
        target=None if target is None else target.name,
        notes=tuple(notes),
    )
    return _Understood(config, state, target_ids, report)
