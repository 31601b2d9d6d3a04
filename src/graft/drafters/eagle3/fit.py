"""Whether a head fits a target: widths, layers, vocabulary, tokenizer."""

from __future__ import annotations

from torch import Tensor

from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.errors import HeadError
from graft.drafters.eagle3.facts import TargetFacts
from graft.drafters.eagle3.origin import Origin

# Rows that models add to their vocabulary to make it even; more is another vocabulary. [ours]
MAX_PADDING = 1024


def check_fit(
    config: Eagle3Config,
    target_ids: Tensor,
    target: TargetFacts,
    name: str,
    origin: Origin,
) -> list[str]:
    """Refuse a head that was made for another target; returns notes.

    Args:
        target_ids: int64 [draft_vocab_size], the target's id of each draft id.
        origin: what the head says of its target.

    Raises:
        HeadError: with what was found and what the target has.
    """
    where = "" if origin.target is None else f" (it says that it was made for {origin.target})"
    if config.target_hidden_size != target.hidden_size:
        raise HeadError(
            f"{name} reads features of width {config.target_hidden_size}, but {target.name} has "
            f"{target.hidden_size}{where}; a head only works with the model it was trained for"
        )
    if not config.own_embeddings and config.hidden_size != target.hidden_size:
        raise HeadError(
            f"{name} has no embeddings of its own and a width of {config.hidden_size}, but the "
            f"embeddings of {target.name} have {target.hidden_size}{where}; the checkpoint needs "
            "embed_tokens.weight"
        )
    if beyond := [i for i in config.feature_layers if i > target.num_hidden_layers]:
        raise HeadError(
            f"{name} reads the input of layer {beyond[0]}, but {target.name} has layers 0 to "
            f"{target.num_hidden_layers - 1}{where}"
        )
    _check_tokenizer(target, name, origin.fingerprint, where)
    notes = _check_vocabulary(config, target, name, where)
    if padded := int((target_ids >= target.token_count).sum()):
        notes.append(f"{padded} draft tokens are padding that the tokenizer does not know")
    return notes


def _check_tokenizer(target: TargetFacts, name: str, fingerprint: str | None, where: str) -> None:
    if fingerprint and target.fingerprint and fingerprint != target.fingerprint:
        raise HeadError(
            f"{name} was trained with another tokenizer than that of {target.name}{where} "
            f"(fingerprints {fingerprint[:12]} and {target.fingerprint[:12]}): its token ids mean "
            "other texts (if a tokenizer that only lies beside the head is old, remove it)"
        )


def _check_vocabulary(
    config: Eagle3Config, target: TargetFacts, name: str, where: str
) -> list[str]:
    mine, theirs = config.vocab_size, target.vocab_size
    if mine == theirs:
        return []
    if min(mine, theirs) >= target.token_count and abs(mine - theirs) <= MAX_PADDING:
        return [
            f"the head's vocabulary has {mine} rows and the target's {theirs}, both padded over "
            f"{target.token_count} tokens"
        ]
    raise HeadError(
        f"{name} was made for a vocabulary of {mine} tokens, but {target.name} has {theirs} "
        f"({target.token_count} known to its tokenizer){where}; a head only works with the model "
        "it was trained for"
    )
