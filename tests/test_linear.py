"""Packed CPU linears: exactness, independent rows, and the life of a module inside a model."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.pytorch_utils import Conv1D

from graft import linear
from graft.linear import PackedLinear, pack_linears

MISSING = linear._missing_kernel(torch.backends.quantized.engine)
HELD = (65504.0, 2.0**-24, -0.0, 1 + 2.0**-10)
LOST = (65505.0, 2.0**-25, 1 + 2.0**-11, 1e9, float("inf"), float("nan"))
needs_kernel = pytest.mark.skipif(MISSING is not None, reason=f"no packed kernel: {MISSING}")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def to_fp16_values(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    return model.eval()


def packed(source: nn.Module) -> PackedLinear:
    model = nn.Sequential(to_fp16_values(source))
    assert pack_linears(model).packed == 1
    return model[0]  # type: ignore[return-value]


def tiny_gpt2() -> nn.Module:
    config = GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, eos_token_id=None)
    return to_fp16_values(GPT2LMHeadModel(config))


def tiny_llama(tied: bool = False) -> nn.Module:
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied, eos_token_id=None,
    )  # fmt: skip
    return to_fp16_values(LlamaForCausalLM(config))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_bits_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, values in a.items():
        assert torch.equal(values.view(torch.int32), b[name].view(torch.int32)), name


def disturbed_rows(apply: Callable[[Tensor], Tensor], rows: int, columns: int) -> int:
    """How many other rows change when one row of the input does."""
    x = torch.randn(rows, columns)
    before, victim = apply(x), rows // 2
    x[victim] = 100 * torch.randn(columns)
    changed = (apply(x) != before).any(-1)
    return int(changed.sum()) - int(changed[victim])


@needs_kernel
@pytest.mark.parametrize(
    "source", [nn.Linear(640, 48), nn.Linear(19, 37, bias=False), nn.Linear(1, 1), Conv1D(6, 10)]
)
def test_result_equals_the_linear(source: nn.Module) -> None:
    to_fp16_values(source)
    made = packed(copy.deepcopy(source))
    assert torch.equal(made.weight, source.weight)
    x = torch.randn(2, 3, n := made.in_features)
    for given in (x, x[0, 0], x[:, 1], x[:0], torch.randn(n, 4).t(), torch.randn(4, 3 * n)[:, ::3]):
        wanted = copy.deepcopy(source).double()(given.contiguous().double())
        torch.testing.assert_close(made(given).double(), wanted, atol=1e-5, rtol=1e-5)


@needs_kernel
def test_rows_are_independent_bitwise() -> None:
    """Other rows do not matter, nor (measured: difference 0) their number."""
    made = packed(nn.Linear(600, 72))  # more columns than the kernel's block of 512
    x = torch.randn(64, 600)
    all_rows = made(x)
    for rows in range(1, 65):
        assert disturbed_rows(made, rows, 600) == 0
        torch.testing.assert_close(made(x[:rows]), all_rows[:rows], atol=1e-6, rtol=1e-6)
    torch.set_num_threads(2)
    assert torch.equal(torch.cat([made(x[:1]), made(x)]), torch.cat([all_rows[:1], all_rows]))


def test_rows_control_one_scale_for_all_rows_is_caught() -> None:
    """Negative control: dynamic int8 chooses the scale of the activations from every row."""

    weight = torch.randn(600, 72)
    assert disturbed_rows(lambda x: (x * 127 / x.abs().amax()).round() @ weight, 8, 600) == 7


@needs_kernel
def test_script_and_direct_calls_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    source, x = to_fp16_values(nn.Linear(30, 20)), torch.randn(3, 30)
    made = packed(copy.deepcopy(source))
    monkeypatch.setattr(torch.jit, "script", None)
    assert torch.equal(packed(source)(x), made(x))


@needs_kernel
@pytest.mark.parametrize("value", HELD + LOST)
def test_auto_keeps_what_fp16_cannot_hold(value: float) -> None:
    stays = value not in HELD
    model = to_fp16_values(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)))
    with torch.no_grad():
        model[0].weight[1, 2] = value
    before = weights(model)
    report = pack_linears(model, "auto", {"0.weight": torch.bfloat16})
    assert report.packed == (1 if stays else 2)
    assert [reason.split(":")[0] for reason in report.kept] == (["0"] if stays else [])
    assert all("torch.bfloat16" in reason for reason in report.kept)
    assert type(model[0]) is (nn.Linear if stays else PackedLinear)
    assert_bits_equal(weights(model), before)


@needs_kernel
@pytest.mark.parametrize("value", [7e4, float("nan")])
def test_fp16_mode_rounds_and_names_a_tensor_out_of_range(value: float) -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    wanted = model["a"].weight.half().float()
    assert not torch.equal(wanted, model["a"].weight)
    model["b"].weight.data[0, 0] = value
    with pytest.raises(ValueError, match=r"b\.weight.*65504"):
        pack_linears(model, "fp16")
    assert type(model["a"]) is nn.Linear
    model["b"].weight.data[0, 0] = 7.0
    assert pack_linears(model, "fp16").packed == 2
    assert torch.equal(model["a"].weight, wanted)
    assert pack_linears(model, "fp16").packed == 0


def test_modes_and_a_machine_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(to_fp16_values(nn.Linear(4, 4))), torch.randn(2, 4)
    assert pack_linears(model, "fp32") == linear.PackReport(0, (), 0)
    with pytest.raises(ValueError, match="auto, fp32, fp16"):
        pack_linears(model, "int8")  # type: ignore[arg-type]
    monkeypatch.setattr(linear, "_missing_kernel", lambda engine: "the CPU is of paper")
    assert pack_linears(model, "auto").kept == ("every linear: the CPU is of paper",)
    with pytest.raises(ValueError, match="FBGEMM"):
        pack_linears(model, "fp16")
    for source in (model[0], Conv1D(3, 4)):  # a pickle from elsewhere lands here
        made = PackedLinear(source)
        assert not made.packed
        assert made.weight is source.weight
        assert torch.equal(copy.deepcopy(made).state_dict()["weight"], source.weight)
        torch.testing.assert_close(made(x), source(x))


@needs_kernel
def test_what_is_replaced() -> None:
    other = type("Other", (nn.Linear,), {})
    shared, hooked = nn.Linear(4, 4), nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, args, out: None)
    parts = [other(2, 2), nn.Linear(2, 2).bfloat16(), hooked, nn.Linear(2, 2, device="meta")]
    model = to_fp16_values(nn.ModuleList([*parts, nn.Sequential(shared), shared]))
    model.experts = nn.Parameter(torch.zeros(4, 2, 2))
    weight = weakref.ref(shared.weight)
    del shared
    report = pack_linears(model)
    assert (report.packed, report.bytes_saved) == (1, 32)
    assert [name.split(":")[0] for name in report.kept] == ["1", "2", "3"]
    assert model[4][0] is model[5]
    assert type(model[5]) is PackedLinear
    assert weight() is None  # the fp32 weight is freed


@needs_kernel
def test_fallbacks() -> None:
    made, x = packed(nn.Linear(12, 5)), torch.randn(3, 12)
    wanted = made(x)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        out = made(x.to(dtype))
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), wanted, atol=3e-2, rtol=3e-2)
    needs = x.clone().requires_grad_()
    made(needs).sum().backward()
    torch.testing.assert_close(needs.grad, made.weight.sum(0).expand(3, 12))
    with pytest.raises(RuntimeError, match="dtype"):
        made(x.long())


@needs_kernel
def test_weight_is_cheap_to_ask_and_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    made = packed(nn.Linear(12, 5))
    values = made.weight.detach().clone()
    monkeypatch.setattr(made, "_read", lambda: pytest.fail("asking unpacks"))
    assert (made.weight.dtype, made.weight.device.type) == (torch.float32, "cpu")
    assert made.weight.shape == (5, 12)
    monkeypatch.undo()
    assert isinstance(made.weight, nn.Parameter)
    for write in (lambda w: w.zero_(), lambda w: w.__setitem__(0, 0.0), nn.init.zeros_):
        with pytest.raises(RuntimeError, match="read-only"):
            write(made.weight)
    assert torch.equal(made.weight, values)
    made.weight = given = nn.Parameter(2 * values)
    assert made.packed
    assert made.weight is given
    torch.testing.assert_close(made(torch.eye(12)) - made.bias, 2 * values.t())


@needs_kernel
def test_traced_calls_see_one_opaque_operator() -> None:
    model, x = nn.Sequential(packed(nn.Linear(12, 5))), torch.randn(3, 12)
    graph = torch.export.export(model, (x,))
    assert "graft.packed_linear" in graph.graph_module.code
    assert torch.equal(graph.module()(x), model(x))
    assert torch.equal(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(x)).shape == (3, 5)


@needs_kernel
def test_moves_and_back() -> None:
    made, x = packed(nn.Linear(12, 5)), torch.randn(3, 12)
    wanted = made(x)
    torch.testing.assert_close(made.double()(x.double()).float(), wanted)
    assert not made.packed
    assert torch.equal(made.float()(x), wanted)
    assert made.packed
    assert made.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    assert made.float().packed
    made.to("meta").to_empty(device="cpu").load_state_dict(packed(nn.Linear(12, 5)).state_dict())
    assert made.packed


@needs_kernel
@pytest.mark.parametrize("assign", [False, True])
def test_load_state_dict_repacks(assign: bool) -> None:
    made, x = packed(nn.Linear(12, 5)), torch.randn(3, 12)
    for other in (to_fp16_values(nn.Linear(12, 5)), nn.Linear(12, 5)):
        made.load_state_dict(other.state_dict(), assign=assign)
        torch.testing.assert_close(made(x), other(x))
        assert made.packed == ("weight" not in dict(made.named_parameters()))
        assert made.packed == torch.equal(other.weight.half().float(), other.weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        packed(nn.Linear(12, 5)).load_state_dict({})


@needs_kernel
@pytest.mark.parametrize("make", [tiny_llama, lambda: tiny_llama(tied=True), tiny_gpt2])
def test_a_model_works_as_before(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model, ids = make(), torch.randint(2, 96, (2, 9))
    before, plain = weights(model), copy.deepcopy(model)
    report = pack_linears(model, "auto")
    assert (report.packed, report.kept) == (9 if isinstance(model, GPT2LMHeadModel) else 15, ())
    logits = model(ids).logits
    torch.testing.assert_close(logits, plain(ids).logits, atol=1e-4, rtol=0)
    tokens = [m.generate(ids, max_new_tokens=6, do_sample=False) for m in (model, plain)]
    assert torch.equal(*tokens)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin.get_output_embeddings(), PackedLinear)
        assert torch.equal(twin(ids).logits, logits)
    model.tie_weights()
    assert_bits_equal(weights(model), before)
    model.save_pretrained(tmp_path)
    assert_bits_equal(weights(type(model).from_pretrained(tmp_path)), before)
    assert torch.equal(*(m.to(torch.bfloat16)(ids).logits for m in (model, plain)))
    for m in (model, plain):
        m.float().load_state_dict(before)
    assert all(m.packed for m in model.modules() if isinstance(m, PackedLinear))
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-4, rtol=0)


@needs_kernel
def test_a_tied_embedding_keeps_its_tensor() -> None:
    model = tiny_llama(tied=True)
    embedding, x = model.get_input_embeddings(), torch.randn(1, 32)
    size = 2 * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))
    assert pack_linears(model).bytes_saved == size - 4 * embedding.weight.numel()
    for alive in (model, copy.deepcopy(model), model.to(torch.bfloat16).float()):
        head, embedding = alive.get_output_embeddings(), alive.get_input_embeddings()
        assert head.packed
        assert head.weight is embedding.weight
        with torch.no_grad():
            embedding.weight.mul_(2)  # the packed copy must follow
        torch.testing.assert_close(head(x), functional.linear(x, embedding.weight))
