"""Where training starts: the shape of a head, from its target's, and its first weights.

A new head is one decoder layer as wide as the target's. Each feature is normed before they are
fused [as in EAGLE-3.1]: raw hidden states hold values hundreds of times their typical size, and
beside a residual of that size the layer's own output, through which alone the next token's
embedding comes in, would be noise. The output layer begins as the target's rows of the draft
vocabulary; all else begins random, for the target's own layers say what follows the feature's
token, which is known by then. [ours, measured]

It knows heads and targets; not data, not loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from graft.drafters.eagle3.config import Eagle3Config
from graft.drafters.eagle3.head import Eagle3Head
from graft.drafters.eagle3.loader import load_head
from graft.drafters.eagle3.target_facts import facts_of
from graft.features import decoder_layers
from graft.models import LoadedModel
from graft.train.answers import Answer
from graft.train.settings import DRAFT_VOCAB, TrainSettings
from graft.train.vocabulary import choose_vocabulary, coverage

STD = 0.02  # of weights that nothing is known about


@dataclass(frozen=True)
class Start:
    """config, weights (fp32, on the CPU, by the head's names) and draft vocabulary of a head."""

    config: Eagle3Config
    weights: dict[str, Tensor]
    target_ids: Tensor

    def coverage(self, answers: Sequence[Answer]) -> float:
        """Share of the answers' tokens that the head can name."""
        return coverage(answers, self.target_ids.tolist())


def start_new(
    loaded: LoadedModel,
    answers: Sequence[Answer],
    settings: TrainSettings,
    layers: tuple[int, ...] | None,
) -> Start:
    """A head that has learnt nothing yet.

    Args:
        layers: of the target, whose inputs it reads; None takes EAGLE-3's.

    Raises:
        ValueError: for layers that the target does not have.
    """
    body = decoder_layers(loaded.model)
    wanted = layers or default_layers(len(body))
    if bad := [layer for layer in wanted if not 1 <= layer <= len(body)]:
        raise ValueError(
            f"feature layer {bad[0]}: {loaded.name} has {len(body)} layers, so 1 to {len(body)} "
            "are supported (a layer's number names its input; the last is the final norm's)"
        )
    ids = _vocabulary(loaded, answers, settings.draft_vocab or DRAFT_VOCAB)
    config = head_config(
        loaded.model,
        layers=wanted,
        vocab_size=loaded.vocab_size,
        draft_vocab_size=len(ids),
        max_length=settings.length,
        window=settings.window,
    )
    return Start(config, _first_weights(config, loaded.model, ids, settings.seed), ids)


def start_from(
    base: str, loaded: LoadedModel, answers: Sequence[Answer], settings: TrainSettings
) -> Start:
    """A head that there is already. Where another draft vocabulary is asked for, the rows of its
    output layer for tokens that it could not name begin as the target's.

    Raises:
        ValueError: for one that does not fit the target, or has several layers.
    """
    head = load_head(base, facts_of(loaded), dtype=torch.float32).head
    if len(head.layers) > 1:
        raise ValueError(f"{base} has {len(head.layers)} layers; heads of 1 can be trained")
    weights = {name: weight.detach() for name, weight in head.named_parameters()}
    if settings.draft_vocab is None:
        return Start(head.config, weights, head.target_ids)
    ids = _vocabulary(loaded, answers, settings.draft_vocab)
    rows = _output_rows(loaded.model)
    rows[head.target_ids] = weights["lm_head.weight"]
    weights["lm_head.weight"] = rows[ids]
    return Start(replace(head.config, draft_vocab_size=len(ids)), weights, ids)


def running_copy(start: Start, model: PreTrainedModel) -> Eagle3Head:
    """The head in its target's dtype, on its device."""
    return head_of(start, model.dtype).to(model.device)


def head_of(start: Start, dtype: torch.dtype) -> Eagle3Head:
    """The head on the CPU, its weights in `dtype`; not its rotary table, which to(dtype) rounds."""
    head = Eagle3Head(start.config)
    weights = {name: weight.to(dtype) for name, weight in start.weights.items()}
    state = {**weights, "target_ids": start.target_ids}
    head.load_state_dict(state, strict=True, assign=True)
    return head


def default_layers(count: int) -> tuple[int, ...]:
    """Layers of a target of `count` whose inputs a head reads [EAGLE-3: 2, n // 2, n - 3]."""
    if count >= 7:
        return 2, count // 2, count - 3
    return tuple(sorted({1, count // 2 + 1, count}))


def head_config(
    model: Any,
    *,
    layers: tuple[int, ...],
    vocab_size: int,
    draft_vocab_size: int,
    max_length: int,
    window: int | None,
) -> Eagle3Config:
    """One layer as wide as the target's.

    Args:
        model: the target, of Transformers.
        layers: whose inputs it reads.
        max_length: tokens of the longest text it is trained on.
        window: positions back that it sees; None sees all.
    """
    config = model.config.get_text_config(decoder=True)
    size, heads = int(config.hidden_size), int(config.num_attention_heads)
    inner = getattr(config, "intermediate_size", None) or 4 * size
    return Eagle3Config(
        hidden_size=size,
        target_hidden_size=size,
        intermediate_size=int(inner),
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or size // heads),
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        feature_layers=layers,
        rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-5)),
        rope_parameters=_rope(config),
        max_position_embeddings=max_length,
        sliding_window=window,
        fc_norm=True,
    )


def _output_rows(model: PreTrainedModel) -> Tensor:
    """A copy of the output layer of a target: fp32 [V, H] on the CPU."""
    output = model.get_output_embeddings()
    assert output is not None
    weight: Tensor = output.weight
    return weight.detach().to("cpu", torch.float32, copy=True)


def _vocabulary(loaded: LoadedModel, answers: Sequence[Answer], size: int) -> Tensor:
    size = min(size, loaded.token_count)
    return choose_vocabulary(answers, size, loaded.token_count, loaded.eos_token_ids)


def _first_weights(
    config: Eagle3Config, model: Any, target_ids: Tensor, seed: int
) -> dict[str, Tensor]:
    head = Eagle3Head(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=STD, generator=generator)
        head.lm_head.weight.copy_(_output_rows(model)[target_ids])
    return {name: weight.detach() for name, weight in head.named_parameters()}


def _rope(config: Any) -> dict[str, Any]:
    """The target's rotary settings; of layer types, those of full attention."""
    found = dict(getattr(config, "rope_parameters", None) or {})
    found = dict(found.get("full_attention", found))
    return {"rope_type": "default", "rope_theta": 10000.0, **found}
