"""A lean forward for models of the Llama kind: the same operations, without what surrounds them.

At the few rows of a decoding step a forward of Transformers spends as long on calls, wrappers and
copies between the products as some of the products take. For the architectures below the layers
are run here, with the model's own weights: each operation that rounds is the model's own, in its
order, so hidden states and logits are those of the model bit for bit; what is saved are wrappers,
intermediate copies and a rotation of queries and keys apart. [ours]

Any other architecture, and a model somebody has put hooks or other modules into, is left to
Transformers. It knows layers and attention, not trees or tokens' meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from graft.attention import Step, tree_attention
from graft.cache import KVCache
from graft.features import FeatureHook
from graft.linear import PackedLinear
from graft.linear_bf16 import Bf16Linear

# Kinds whose decoder layers are what is computed here, by their package in Transformers.
KINDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_PARTS = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
_OTHERS = (
    nn.Linear,
    nn.Embedding,
    nn.ModuleList,
    nn.SiLU,
    SiLUActivation,
    PackedLinear,
    Bf16Linear,
)


class _Norm(NamedTuple):
    weight: Tensor
    epsilon: float
    size: Tensor  # float32 scalar, numbers of a row: dividing by a tensor costs less than by these

    @classmethod
    def of(cls, module: Any) -> Self:
        weight = module.weight
        size = torch.tensor(float(len(weight)), device=weight.device)
        return cls(weight, module.variance_epsilon, size)

    def __call__(self, x: Tensor) -> Tensor:
        """As RMSNorm of these models: in fp32, rounded before the weight is applied."""
        if x.dtype == torch.float32:
            return self._scaled(x).mul_(self.weight)
        return self._scaled(x.float()).to(x.dtype).mul_(self.weight)

    def _scaled(self, x: Tensor) -> Tensor:
        # As x.pow(2).mean(-1), which makes a tensor of the size each time.
        mean = (x * x).sum(-1, keepdim=True).div_(self.size)
        return x * mean.add_(self.epsilon).rsqrt_()


Linear = Callable[[Tensor], Tensor]


class _Layer(NamedTuple):
    """What a decoder layer is made of."""

    attention: nn.Module
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    query_norm: _Norm | None
    key_norm: _Norm | None
    gate: Linear
    up: Linear
    down: Linear
    before: _Norm
    between: _Norm
    head_dim: int
    scaling: float
    window: int | None


class LeanForward:
    """The forward of one model, as its modules are now.

    Made anew where they may have changed; `of` says for which models there is one.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        base: Any = model.base_model
        self._embed, self._rotary, self._head = base.embed_tokens, base.rotary_emb, model.lm_head
        self._norm = _Norm.of(base.norm)
        self._layers = [_layer_of(layer) for layer in base.layers]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """The lean forward of a model; None where Transformers must run it."""
        return cls(model) if _is_plain(model) else None

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        step: Step,
        cache: KVCache,
        keep: int,
        wanted: Collection[int] = (),
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits [B, keep, V] of the last rows, and features.

        Args:
            tokens, positions: int64 [B, N].
            step: begun on `cache`, which takes the keys and values.
            wanted: layers whose inputs [B, N, H] are returned; the number of layers stands for
                the input of the final norm.
        """
        x = self._embed(tokens)
        cos, sin = self._rotary(x, position_ids=positions)
        half = cos.shape[-1] // 2
        # Signs go to the sines, so that halves are swapped as they are.
        cos, sin = cos.unsqueeze(2), torch.cat([-sin[..., :half], sin[..., half:]], -1).unsqueeze(2)
        features = {}
        for index, layer in enumerate(self._layers):
            if index in wanted:
                features[index] = x
            x = _attended(layer, x, cos, sin, step, cache, index)
            rows = layer.between(x)
            hidden = functional.silu(layer.gate(rows), inplace=True).mul_(layer.up(rows))
            x = layer.down(hidden).add_(x)
        if len(self._layers) in wanted:
            features[len(self._layers)] = x
        return self._head(self._norm(x[:, -keep:])), features


def _attended(
    layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, step: Step, cache: KVCache, index: int
) -> Tensor:
    """x [B, N, H] with what attention adds."""
    rows = layer.before(x)
    shape = (*rows.shape[:2], -1, layer.head_dim)
    query, key = layer.query(rows).view(shape), layer.key(rows).view(shape)
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = layer.query_norm(query), layer.key_norm(key)
    heads = query.shape[2]
    both = torch.cat([query, key], 2)  # [B, N, Hq + Hkv, D]
    half = layer.head_dim // 2
    swapped = torch.cat([both[..., half:], both[..., :half]], -1)
    turned = (both * cos).add_(swapped.mul_(sin)).transpose(1, 2)
    value = layer.value(rows).view(shape).transpose(1, 2)
    keys, values = cache.update(turned[:, heads:], value, index)
    out, _ = tree_attention(
        layer.attention,
        turned[:, :heads],
        keys,
        values,
        None,
        graft_step=step,
        scaling=layer.scaling,
        sliding_window=layer.window,
    )
    attended: Tensor = layer.out(out.reshape(*x.shape[:2], -1)).add_(x)
    return attended


def _is_plain(model: PreTrainedModel) -> bool:
    """Whether every part is what Transformers or Graft made it, with nothing hung on it."""
    kind = model.config.model_type
    name, home = KINDS.get(kind), f"transformers.models.{kind}.modeling_{kind}"
    if name is None or _name(model) != f"{home}.{name}ForCausalLM":
        return False
    known = {f"{home}.{name}{part}" for part in _PARTS}
    dtype = model.get_input_embeddings().weight.dtype
    fine = all(
        (type(module) in _OTHERS or _name(module) in known)
        and not _is_changed(module)
        and all(weight.dtype == dtype for weight in module.parameters(recurse=False))
        for module in model.modules()
    )
    return fine and model.config.hidden_act == "silu" and not model.training


def _is_changed(module: nn.Module) -> bool:
    own = vars(module)
    hooks = [*own["_forward_hooks"].values(), *own["_forward_pre_hooks"].values()]
    foreign = any(not isinstance(hook, FeatureHook) for hook in hooks)
    return foreign or "forward" in own or "_hf_hook" in own


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def _bare(linear: Any) -> Linear:
    return linear.bare() if isinstance(linear, PackedLinear) else linear


def _layer_of(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    norms: tuple[_Norm | None, _Norm | None] = (None, None)
    if hasattr(attention, "q_norm"):
        norms = _Norm.of(attention.q_norm), _Norm.of(attention.k_norm)
    return _Layer(
        attention,
        _bare(attention.q_proj),
        _bare(attention.k_proj),
        _bare(attention.v_proj),
        _bare(attention.o_proj),
        *norms,
        _bare(mlp.gate_proj),
        _bare(mlp.up_proj),
        _bare(mlp.down_proj),
        _Norm.of(layer.input_layernorm),
        _Norm.of(layer.post_attention_layernorm),
        attention.head_dim,
        attention.scaling,
        # Mistral has one for all layers.
        getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)),
    )
