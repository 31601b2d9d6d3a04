"""Putting an `Eagle3Config` together from what a format says where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.formats.base import (
    FEATURES,
    Converted,
    Layers,
    State,
    feature_layers,
    rename,
)
from graft.drafters.eagle3.formats.fields import Fields
from graft.drafters.eagle3.formats.shape import read_parts, read_shape


@dataclass(frozen=True)
class Flags:
    """Flags of `Eagle3Config` that formats state in different places."""

    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool


def read_flags(fields: Fields, nested: Fields) -> Flags:
    """The norms' flags; the nested object wins (vLLM reads NVIDIA's checkpoints that way)."""

    def flag(*names: str) -> bool:
        found = [part.flag(name) for part in (nested, fields) for name in names]
        return next((value for value in found if value is not None), False)

    return Flags(
        norm_before_residual=flag("norm_before_residual"),
        norm_before_fc=flag("norm_before_fc"),
        fc_norm=flag("fc_norm", "use_aux_norm"),
        norm_output=flag("norm_output"),
    )


def assemble(
    fields: Fields,
    top: Fields,
    state: Mapping[str, Tensor],
    target: TargetFacts | None,
    layers: Layers,
    flags: Flags,
    *,
    biased: bool,
) -> Converted:
    """A converted checkpoint.

    Args:
        fields: of the draft layer. top: of the head.
        biased: see `read_parts`.
    """
    named = rename(state)
    single = not biased and any(k.removeprefix("model.").startswith("midlayer.") for k in state)
    shape = read_shape(fields, named, trained_single=single)
    draft = top.integer("draft_vocab_size")
    if draft is None:
        top.notes.append("draft_vocab_size is not stated: the whole vocabulary assumed")
    config = Eagle3Config(
        target_hidden_size=top.integer("target_hidden_size") or shape["hidden_size"],
        draft_vocab_size=draft or shape["vocab_size"],
        feature_layers=feature_layers(layers, target, top.notes),
        norm_before_residual=flags.norm_before_residual,
        norm_before_fc=flags.norm_before_fc,
        fc_norm=flags.fc_norm,
        norm_output=flags.norm_output,
        **shape,
        **read_parts(fields, named, biased=biased),
    )
    _tie(fields, config, named)
    for part in {id(part): part for part in (fields, top)}.values():
        part.refuse_unread()
    notes = dict.fromkeys([*top.notes, *fields.notes])
    return Converted(config, named, layers.written, tuple(notes))


def assemble_flat(
    fields: Fields,
    state: Mapping[str, Tensor],
    target: TargetFacts | None,
    layers: Layers,
    nested: Fields,
) -> Converted:
    """A configuration with the draft layer's fields at its top, as the authors' code reads them.

    Args:
        nested: its `eagle_config`, where some trainers put the flags.
    """
    count = fields.integer("num_aux_hidden_states")
    if count not in (None, len(layers.written or range(FEATURES))):
        raise HeadError(
            f"{fields.where}: num_aux_hidden_states = {count}, but the feature layers named are "
            f"{layers.written}"
        )
    flags = read_flags(fields, nested)
    nested.flag("use_aux_hidden_state")
    made = assemble(fields, fields, state, target, layers, flags, biased=False)
    nested.refuse_unread()
    return replace(made, notes=(*made.notes, *nested.notes))


def _tie(fields: Fields, config: Eagle3Config, named: State) -> None:
    """A head that shares its matrices writes one of them."""
    if "lm_head.weight" in named or "embed_tokens.weight" not in named:
        return
    whole = config.draft_vocab_size == config.vocab_size
    if whole and fields.values.get("tie_word_embeddings") is True:
        named["lm_head.weight"] = named["embed_tokens.weight"]
        fields.notes.append("tie_word_embeddings: the head's embeddings are its lm_head too")
