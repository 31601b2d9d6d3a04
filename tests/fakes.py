"""A fake target, a byte tokenizer and an engine over them: fast, exact, without any model.

Purpose: tests of everything around the model. `FakeTarget` follows the `Target` protocol with a
law that can be written down: the logits after a path are a function of the path's last tokens.

Invariant: the same arguments give the same logits in every process. A node's path is derived from
the tree's parents and from the tokens that were *committed*, so a wrong tree, commit, truncation
or move shows up as wrong logits, as it would in a real model.

Quick use:
    engine = fake_engine()                       # 256 bytes, <bos> 256, <eos> 257; ASCII text
    engine = fake_engine(vocab_size=5, order=2)  # small enough to enumerate; no end token
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from graft.engine import Engine
from graft.settings import EngineSettings
from graft.target import Absorber, Observer, Verification
from graft.template import Template
from graft.tree import TokenTree
from tests.cost_tables import FREE

BOS_ID, EOS_ID = 256, 257
BYTE_VOCAB = 258
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

_BUCKETS = 4093  # contexts are hashed to so many, where there are more; a prime
_PRINTABLE = tuple(range(32, 127))


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """A real fast tokenizer in which id i is byte i; <bos> is 256, <eos> is 257.

    Text beyond ASCII takes several ids per character. Pass `CHAT_TEMPLATE` for a chat model's.
    """
    vocabulary = {c: i for i, c in enumerate(_byte_characters())}
    vocabulary |= {"<bos>": BOS_ID, "<eos>": EOS_ID}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<bos>", "<eos>")]
    )
    made: Any = PreTrainedTokenizerFast
    return made(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", chat_template=chat_template
    )


def _byte_characters() -> list[str]:
    """The visible character that stands for each byte in a byte-level tokenizer."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    stand_ins = iter(range(256, 512))
    return [chr(b if b in plain else next(stand_ins)) for b in range(256)]


class FakeTarget:
    """A `Target` whose next-token law is a table.

    logits(path) = sharpness * (context * own[last `order` tokens] + base[last token])

    It has no features.

    Args:
        vocab_size: ids that exist. order: how many last tokens the law reads.
        seed: of the table. sharpness: spread of the logits.
        context: weight of what the last token alone does not tell: 0 makes a matrix all-knowing.
        padding: columns of logits behind the vocabulary, all very large: never to be chosen.
        likely: ids that occur at all; the others lie 20 below.
        max_context: as of a real model.
    """

    def __init__(
        self,
        vocab_size: int = BYTE_VOCAB,
        *,
        order: int = 2,
        seed: int = 0,
        sharpness: float = 2.0,
        context: float = 0.7,
        padding: int = 0,
        likely: Sequence[int] | None = None,
        max_context: int | None = None,
    ) -> None:
        self.device = torch.device("cpu")
        self.token_count = vocab_size
        self.vocab_size = vocab_size + padding
        self.max_context = max_context
        self.order = order
        contexts = min((vocab_size + 1) ** order, _BUCKETS)
        random = torch.Generator().manual_seed(seed)
        own = torch.randn(contexts, vocab_size, generator=random)
        base = torch.randn(vocab_size + 1, vocab_size, generator=random)
        off = torch.zeros(vocab_size)
        if likely is not None:
            off = torch.full((vocab_size,), -20.0)
            off[list(likely)] = 0.0
        self._own = sharpness * context * own
        self._base = sharpness * base + off
        self.committed: list[list[int]] = []  # tokens per slot
        self._last: TokenTree | None = None  # the tree of the last verify
        self.openings = 0
        self.forwards = 0  # calls of prefill and verify
        self.row_bytes = 4 * self.vocab_size

    def law(self, tokens: Sequence[int]) -> Tensor:
        """Logits [V] after `tokens`, computed directly: what `verify` must say of that path."""
        tail = [self.token_count] * self.order + list(tokens)
        return self._logits(torch.tensor(tail[-self.order :][::-1]))

    def open(self, slots: int, capacity: int) -> None:
        self.openings += 1
        self.committed = [[] for _ in range(slots)]
        self._last = None

    def length(self, slot: int) -> int:
        return len(self.committed[slot])

    def prefill(
        self,
        slot: int,
        tokens: Tensor,
        observe: Observer | None = None,
        absorb: Absorber | None = None,
    ) -> Tensor:
        self.forwards += 1
        logits = tokens.new_empty(0)
        for chunk in tokens.split(256):
            start = self.length(slot)
            self.committed[slot] += chunk.tolist()
            ends = range(start + 1, len(self.committed[slot]) + 1)
            logits = torch.stack([self.law(self.committed[slot][:end]) for end in ends])
            if observe is not None:
                observe(chunk, logits)
        return logits[-1]

    def verify(self, tree: TokenTree) -> Verification:
        self.forwards += 1
        self._last = tree
        return Verification(self._logits(self.tails(tree)), None)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        assert self._last is not None, "verify() comes first"
        for slot, path in enumerate(paths):
            tokens = self._last.tokens[slot]
            self.committed[slot] += [int(tokens[node]) for node in (0, *path)]
        self._last = None

    def truncate(self, slot: int, length: int) -> None:
        del self.committed[slot][length:]

    def move(self, source: int, target: int) -> None:
        self.committed[target] = list(self.committed[source])

    def tails(self, tree: TokenTree) -> Tensor:
        """Last tokens of every node's path, latest first: int64 [B, N, order].

        They are read off the parents up to the root, then off the committed tokens.
        """
        batch, width = tree.tokens.shape
        none = [self.token_count] * self.order
        past = [(none + self.committed[b])[-self.order :][::-1] for b in range(batch)]
        before = torch.tensor(past).reshape(batch, self.order)  # latest first
        node = torch.arange(width).expand(batch, width)
        back = torch.zeros_like(node)  # how many tokens before the root
        out = []
        for _ in range(self.order):
            token = tree.tokens.gather(1, node)
            out.append(torch.where(back > 0, before.gather(1, (back - 1).clamp(min=0)), token))
            back = back + (node == 0)
            node = torch.where(node == 0, 0, tree.parents.gather(1, node))
        return torch.stack(out, dim=2)

    def _logits(self, tail: Tensor) -> Tensor:
        """[..., order] tokens, latest first, to logits [..., V]."""
        code = torch.zeros_like(tail[..., 0])
        for token in tail.unbind(-1):
            code = (code * (self.token_count + 1) + token) % len(self._own)
        logits = self._own[code] + self._base[tail[..., 0]]
        padding = self.vocab_size - self.token_count
        return torch.nn.functional.pad(logits, (0, padding), value=1e4)


def fake_engine(
    vocab_size: int = BYTE_VOCAB,
    *,
    target: FakeTarget | None = None,
    tokenizer: PreTrainedTokenizerFast | None = None,
    eos_token_ids: Sequence[int] | None = None,
    template: Template | None = None,
    settings: EngineSettings | None = None,
    **law: Any,
) -> Engine:
    """An engine over a `FakeTarget`.

    Args:
        vocab_size, **law: arguments of `FakeTarget`, if `target` is not given. The full byte
            vocabulary speaks printable ASCII, so its text is text.
        tokenizer: `byte_tokenizer()` if None.
        eos_token_ids: <eos> where the vocabulary holds it, if None.
        settings: k is cut to the vocabulary where None is given. Without a policy it retrieves.
    """
    if target is None:
        if vocab_size >= 256:
            law.setdefault("likely", _PRINTABLE)
        target = FakeTarget(vocab_size, **law)
    settings = settings or EngineSettings(k=min(8, target.token_count))
    if eos_token_ids is None:
        eos_token_ids = (EOS_ID,) if target.token_count > EOS_ID else ()
    return Engine(
        target,
        tokenizer or byte_tokenizer(),
        name="fake",
        token_count=target.token_count,
        eos_token_ids=eos_token_ids,
        settings=settings.having(policy=settings.policy or "retrieval"),
        templates=None if template is None else [template],
        costs=FREE,
    )
