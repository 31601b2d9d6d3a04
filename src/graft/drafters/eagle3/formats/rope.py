"""Positions of a head: its rotary embedding, its window, the length it was trained for.

All of it comes from the head's own configuration, never from the target's: a head keeps the
tables it was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.formats.fields import Fields

# What each type of scaling cannot do without.
_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
_OPTIONAL = frozenset(
    {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
    | {"original_max_position_embeddings", "factor", "short_mscale", "long_mscale"}
)
_ALIASES = {"su": "longrope", "mrope": "default", "": "default"}
_MROPE = ("mrope_section", "mrope_interleaved")
DEFAULT_THETA = 10000.0


def read_rope(fields: Fields) -> dict[str, Any]:
    """The rotary embedding in Transformers' form (rope_type, rope_theta, ...).

    It stands in `rope_parameters` (Transformers 5) or in `rope_theta` and `rope_scaling`.

    Raises:
        HeadError: for a type that is unknown or lacks numbers, or two statements that disagree.
    """
    stated = fields.number("rope_theta")
    given = _scaling(fields)
    inner = given.pop("rope_theta", None)
    if stated is not None and inner is not None and float(inner) != stated:
        raise HeadError(
            f"{fields.where} states rope_theta twice, {stated} and {inner}; keep the one that the "
            "head was trained with"
        )
    theta = stated if inner is None else float(inner)
    if theta is None:
        theta = fields.assume("rope_theta", DEFAULT_THETA)
    kind = str(given.pop("rope_type", None) or given.pop("type", None) or "")
    given.pop("type", None)
    sections = [given.pop(name, None) for name in _MROPE]
    if any(sections) or kind == "mrope":
        fields.notes.append(
            "multi-modal rope: text has equal positions in all sections, so it is plain"
        )
    return {"rope_type": _kind(kind, given, fields), "rope_theta": theta, **given}


def _scaling(fields: Fields) -> dict[str, Any]:
    new, old = fields.part("rope_parameters").values, fields.part("rope_scaling").values
    if new and old and _plain(new) != _plain(old):
        raise HeadError(
            f"{fields.where} has rope_parameters and rope_scaling that differ; keep the one that "
            "the head was trained with"
        )
    given = new or old
    if given and all(isinstance(v, Mapping) for v in given.values()):
        # Transformers 5 keeps one object per type of layer where a model has several.
        kinds = list(given.values())
        if any(k != kinds[0] for k in kinds):
            raise HeadError(
                f"{fields.where} has a rope per type of layer; supported is one for the whole head"
            )
        given = kinds[0]
    original = fields.raw("original_max_position_embeddings")
    extra = {} if original is None else {"original_max_position_embeddings": original}
    return {**extra, **{k: v for k, v in given.items() if v is not None}}


def _plain(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Without the theta, and with one name for the type."""
    kind = rope.get("rope_type") or rope.get("type")
    rest = {k: v for k, v in rope.items() if k not in ("rope_theta", "rope_type", "type")}
    return {**rest, "type": kind}


def _kind(written: str, given: dict[str, Any], fields: Fields) -> str:
    kind = _ALIASES.get(written, written)
    if kind not in _NEEDED:
        raise HeadError(
            f"{fields.where} has rope of type {written!r}; supported are {', '.join(_NEEDED)}"
        )
    if missing := [name for name in _NEEDED[kind] if given.get(name) is None]:
        raise HeadError(f"{fields.where}: rope of type {kind} lacks {', '.join(missing)}")
    if given.get("partial_rotary_factor") == 1:
        del given["partial_rotary_factor"]
    if odd := sorted(set(given) - set(_NEEDED[kind]) - _OPTIONAL):
        listed = ", ".join(f"{name} = {given[name]!r}" for name in odd)
        raise HeadError(f"{fields.where}: rope of type {kind} with {listed} is not supported")
    return kind


def read_window(fields: Fields, layers: int) -> int | None:
    """How many keys back the head sees; None: all.

    `layer_types` decides where it is given; `use_sliding_window: false` switches windows off, as
    in Transformers. A window with neither is used.

    Raises:
        HeadError: for layers of different types.
    """
    window, used = fields.integer("sliding_window"), fields.flag("use_sliding_window")
    named = _layer_types(fields, layers)
    if window is None or used is False:
        return None
    if named:
        return window if named[0] == "sliding_attention" else None
    if used is None:
        fields.notes.append(f"sliding_window = {window} is used, though nothing says it is on")
        return window
    first = fields.raw("max_window_layers")  # Qwen: layers from this one on have windows
    if str(fields.values.get("model_type", "")).startswith("qwen") and isinstance(first, int):
        if 0 < first < layers:
            raise HeadError(
                f"{fields.where}: windows from layer {first} on; supported: all or none"
            )
        return window if first == 0 else None
    return window


def _layer_types(fields: Fields, layers: int) -> list[str]:
    types = fields.raw("layer_types")
    named = [str(t) for t in types[:layers]] if isinstance(types, list) else []
    if odd := sorted(set(named) - {"full_attention", "sliding_attention"}):
        raise HeadError(f"{fields.where}: layers of type {', '.join(odd)} are not supported")
    if len(set(named)) > 1:
        raise HeadError(
            f"{fields.where}: layers of different types ({', '.join(named)}); supported is one "
            "window for all layers of the head"
        )
    return named
