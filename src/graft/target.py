"""The target: the model whose output must be reproduced, seen as a verifier of token trees.

`Target` is the seam the engine works with; `TransformersTarget` puts any causal language model of
Transformers behind it, unmodified: our attention function by name, our cache, positions by depth,
features by forward hooks. Models of the Llama kind are run by `graft.lean`. It does not know where
a tree came from, nor how tokens are chosen.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from graft import attention
from graft.attention import FixedStep, Step
from graft.cache import KVCache
from graft.features import hook_features, unhook
from graft.lean import LeanForward
from graft.model_state import state_of
from graft.recordings import ROWS, Recorder, Recordings, Results
from graft.tree import TokenTree, ancestors
from graft.upload import upload

PREFILL_CHUNK = 256  # rows per forward of a prompt: bounds the memory of masks and activations

Observer = Callable[[Tensor, Tensor], None]
Absorber = Callable[[Tensor], None]


class Verification(NamedTuple):
    """What one target forward says about a tree."""

    logits: Tensor  # [B, N, V], of the token that follows each node
    features: Tensor | None  # [B, N, F] hidden states for a head, where layers were asked for


class Target(Protocol):
    """A model that can verify trees for several sequences at once.

    Sequences live in slots 0 .. n-1. A sequence's root is its last token, not yet in the cache.
    """

    vocab_size: int
    max_context: int | None
    device: torch.device
    openings: int  # how often it was opened, so that users can tell that others came between

    @property
    def row_bytes(self) -> int:
        """Memory of a token in its cache, and of the logits behind it."""

    def open(self, slots: int, capacity: int) -> None:
        """Forget everything and make room for `slots` sequences of `capacity` tokens."""

    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""

    def prefill(
        self,
        slot: int,
        tokens: Tensor,
        observe: Observer | None = None,
        absorb: Absorber | None = None,
    ) -> Tensor:
        """Append tokens (int64 [n], n >= 1) to a slot; logits [V] after the last one.

        With `observe`, logits are computed for every token and handed over chunk by chunk as
        (tokens [m], logits [m, V]). With `absorb`, features [m, F] are, before the logits.
        """

    def verify(self, tree: TokenTree) -> Verification:
        """Forward root and nodes of the sequences in slots 0 .. B-1."""

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep root and accepted nodes of the last `verify`, for each of its rows."""

    def truncate(self, slot: int, length: int) -> None:
        """Forget all but the first `length` tokens of a slot."""

    def move(self, source: int, target: int) -> None:
        """Put the sequence of slot `source` into slot `target`."""


class TransformersTarget:
    """A causal language model of Transformers as a `Target`.

    Args:
        model: in evaluation mode; its weights and code are left as they are.
        feature_layers: layers whose *input* hidden states `verify` returns, concatenated; the
            number of layers itself means the input of the final norm.
        max_context: positions the model can take; None if it states no limit.
        recorder: records verifications where the device gains by it; None runs them one by one.

    Raises:
        ValueError: if the model cannot be run this way (`graft.probe` finds out).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        feature_layers: Sequence[int] = (),
        max_context: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        from graft.probe import probe  # the probe runs a forward through this very class

        self.model = model
        self.max_context = max_context
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.device: torch.device = model.device
        self._accepts = inspect.signature(model.forward).parameters
        configs = (getattr(m, "config", None) for m in model.modules())
        self._configs = list({id(c): c for c in configs if c is not None}.values())
        self.feature_layers = tuple(feature_layers)
        self._features: dict[int, Tensor] = {}
        hooks = hook_features(model, self.feature_layers, self._features)
        # The model may outlive this view of it.
        weakref.finalize(self, unhook, hooks)
        self._state = state_of(model)
        self._lean = LeanForward.of(model)
        self._recordings = None if recorder is None else Recordings(recorder, type(model).__name__)
        self._cache: KVCache | None = None
        self.openings = 0
        self.layers = probe(self)

    @property
    def cache(self) -> KVCache:
        assert self._cache is not None, "open() comes first"
        return self._cache

    def open(self, slots: int, capacity: int) -> None:
        self.openings += 1
        state = state_of(self.model)
        if state != self._state:  # others have changed it
            self._state, self._lean = state, LeanForward.of(self.model)
        if self._cache is None or not self._cache.serves(slots, capacity):
            self._cache = None  # frees the old one first
            self._cache = KVCache(self.layers, slots, capacity)

    @property
    def row_bytes(self) -> int:
        rows = [shape for layer in self.layers for shape in layer]
        size = sum(s.heads * s.dim * s.dtype.itemsize for s in rows)
        return size + self.vocab_size * self.model.dtype.itemsize

    def length(self, slot: int) -> int:
        return self.cache.lengths[slot]

    def prefill(
        self,
        slot: int,
        tokens: Tensor,
        observe: Observer | None = None,
        absorb: Absorber | None = None,
    ) -> Tensor:
        logits = tokens.new_empty(0)
        for chunk in tokens.split(PREFILL_CHUNK):
            width = len(chunk)
            step = Step.chain(slot, [self.length(slot)], width, self.device)
            keep = width if observe is not None else 1
            logits = self.forward(chunk.unsqueeze(0), step.depths, step, keep)[0]
            if absorb is not None:
                absorb(self.features()[0])
            if observe is not None:
                observe(chunk, logits)
            self.cache.commit(slot, [range(1, width)])
        return logits[-1]

    def verify(self, tree: TokenTree) -> Verification:
        starts = self.cache.lengths[: tree.batch]
        if self._recordings is not None and tree.batch * tree.width <= ROWS:
            return self._replayed(self._recordings, tree, starts)
        step = Step(0, starts, tree.ancestors(), tree.depths)
        logits = self.forward(tree.tokens, tree.depths, step, tree.width)
        return Verification(logits, self.features() if self.feature_layers else None)

    def _replayed(
        self, recordings: Recordings, tree: TokenTree, starts: Sequence[int]
    ) -> Verification:
        """As `verify`, in one of few shapes: empty slots fill the tree up."""
        width, depth = _bucket(tree.width), _bucket(tree.max_depth)
        end = self.cache.bound(max(starts) + width)
        recordings.hold((self._state, self.cache.addresses))

        def work(tokens: Tensor, parents: Tensor, depths: Tensor, starts: Tensor) -> Results:
            step = FixedStep(starts, end, ancestors(parents, depth), depths)
            logits = self.forward(tokens, depths, step, width)
            return (logits, self.features()) if self.feature_layers else (logits,)

        room = 0, width - tree.width
        arguments = (
            pad(tree.tokens, room),
            pad(tree.parents, room),
            pad(tree.depths, room, value=1),
            upload(starts, self.device),
        )
        logits, *features = recordings.run((tree.batch, width, depth, end), work, arguments)
        own = slice(tree.width)
        return Verification(logits[:, own], features[0][:, own] if features else None)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self.cache.commit(0, paths)

    def truncate(self, slot: int, length: int) -> None:
        self.cache.truncate(slot, length)

    def move(self, source: int, target: int) -> None:
        self.cache.move(source, target)

    def forward(self, tokens: Tensor, depths: Tensor, step: Step, keep: int) -> Tensor:
        """One forward of the model: tokens, depths int64 [B, N]; logits [B, keep, V] at the end.

        The position of a row is the committed length plus its depth. Rows past the model's last
        position cannot be committed any more; they are clamped to it so that tables hold.
        """
        self.cache.begin(step)
        positions = depths + step.starts_on(self.device).unsqueeze(1)
        if self.max_context is not None:
            positions = positions.clamp(max=self.max_context - 1)
        if self._lean is not None:
            layers = self.feature_layers
            logits, features = self._lean(tokens, positions, step, self.cache, keep, layers)
            self._features.update(features)
            return logits
        # Transformers renamed the argument in 5.24.
        cache_name = "cache" if "cache" in self._accepts else "past_key_values"
        arguments: dict[str, Any] = {cache_name: self.cache, "graft_step": step}
        if "logits_to_keep" in self._accepts:
            arguments["logits_to_keep"] = keep
        with self.attention(attention.NAME):
            out = self.model(input_ids=tokens, position_ids=positions, use_cache=True, **arguments)
        given: Tensor = out.logits
        return given[:, -keep:]

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """Let the model use the attention function `name`, for the time of one forward only: it
        may be the user's own and stays usable as it was."""
        before = [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation_internal = name
            yield
        finally:
            for config, old in zip(self._configs, before, strict=True):
                config._attn_implementation_internal = old

    def features(self) -> Tensor:
        """Features [B, N, F] of the last forward."""
        found = [self._features[layer].to(self.device) for layer in self.feature_layers]
        return torch.cat(found, dim=-1)


def _bucket(number: int) -> int:
    """One of few numbers that is no smaller: powers of two, and multiples of 8 from there on."""
    return -(-number // 8) * 8 if number > 4 else 1 << max(number - 1, 0).bit_length()
