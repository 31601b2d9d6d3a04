"""A look at a model before it is trusted with trees.

One tree of four tokens through our attention and cache must give the logits that the model's own
attention gives for the tree's paths. This finds, at load and by name, every architecture that
does not take part (attention written out by hand, caches that rewrite history, positions ignored)
instead of leaving wrong text to be noticed later. On the way it learns the shapes that the model
stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from graft.attention import Step
from graft.cache import KVCache, LayerShape, RowShape

if TYPE_CHECKING:
    from graft.target import TransformersTarget

# root 5, nodes 6 and 7 under the root, node 9 under node 6
TOKENS = (5, 6, 7, 9)
DEPTHS = (0, 1, 1, 2)
PATHS = ((0, 1, 3), (0, 2))

# Largest difference of a logit, in standard deviations of the logits. A wrong mask or position
# moves them by about one; rounding by less than a tenth of these.
TOLERANCE = {torch.float32: 1e-2, torch.float64: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3}


class _Recorder(Cache):
    """Learns what each layer hands to a cache, and keeps nothing."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        pair = (
            RowShape(t.shape[1], t.shape[3], t.dtype, t.device) for t in (key_states, value_states)
        )
        self.shapes[layer_idx] = LayerShape(*pair)
        return key_states, value_states

    def begin(self, step: Step) -> None:
        pass

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


@torch.inference_mode()
def probe(target: TransformersTarget) -> list[LayerShape]:
    """Shapes of all layers' rows. Raises ValueError if trees do not come out right."""
    model = target.model
    name = type(model).__name__
    if model.training:
        raise ValueError(f"{name} is in training mode (dropout is on): call model.eval() first")
    tokens = torch.tensor([TOKENS], device=target.device) % target.vocab_size
    depths = torch.tensor([DEPTHS], device=target.device)
    visible = torch.eye(4, dtype=torch.bool, device=target.device).unsqueeze(0)
    for path in PATHS:
        for i, node in enumerate(path):
            visible[0, node, list(path[:i])] = True
    try:
        recorder = _Recorder()
        target._cache = recorder  # type: ignore[assignment]
        step = Step(0, [0], visible, depths)
        target.forward(tokens, depths, step, 4)
        layers = [recorder.shapes[i] for i in range(len(recorder.shapes))]
        if not layers:
            raise NotImplementedError(f"{name} does not write to the cache it is given")
        target._cache = KVCache(layers, 1, 4)
        logits = target.forward(tokens, depths, step, 4)[0]
    except torch.OutOfMemoryError:
        raise  # says nothing of the model
    except (RuntimeError, AttributeError, TypeError, LookupError, AssertionError) as error:
        raise ValueError(
            f"{name} cannot verify token trees: {error}. Supported are decoder-only models whose "
            "attention goes through Transformers' attention interface (Llama, Qwen, Mistral, "
            "Gemma, Phi, GPT-2, OLMo and their like)"
        ) from error
    finally:
        target._cache = None
    _compare(target, tokens[0], logits)
    return layers


def _compare(target: TransformersTarget, tokens: Tensor, logits: Tensor) -> None:
    model, name = target.model, type(target.model).__name__
    for path in PATHS:
        rows = list(path)
        # The eager form is the model's definition; others have been known to drop soft-capping.
        with target.attention("eager"):
            plain = model(input_ids=tokens[rows].unsqueeze(0), use_cache=False).logits[0]
        off = (plain - logits[rows]).abs().max() / plain.float().std().clamp(min=1e-6)
        if not off <= TOLERANCE[logits.dtype]:
            raise ValueError(
                f"{name} gives other logits under tree attention than under its own (off by "
                f"{float(off):.2g} standard deviations): its attention does not follow the "
                "interface, so decoding it by trees would change its output"
            )
