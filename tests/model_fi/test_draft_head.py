"""Drafts that borrow from their target: shared embeddings, reduced heads."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_fi import EagerRunner, load_config, load_model, predict_memory

IDS = torch.tensor([0, 3, 4, 10, 50, 96])
TOKENS = torch.arange(7, 30)


@pytest.fixture
def target(tiny, tmp_path):
    tiny.save_checkpoint(tiny.make_config("smollm2"), tmp_path / "target", seed=1)
    return load_model(tmp_path / "target", dtype="float32", device="cpu")


@pytest.fixture
def make_draft(tiny, tmp_path):
    """Save a one-layer draft whose file and config are changed as asked; returns its folder."""

    def make(keep=(), add=None, tied=False, **keys):
        config = tiny.make_config("smollm2", num_hidden_layers=1, tie_word_embeddings=tied)
        folder = tmp_path / "draft"
        tiny.save_checkpoint(config, folder, seed=2)
        tensors = load_file(folder / "model.safetensors")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name not in keep:
                tensors.pop(name, None)
        save_file({**tensors, **(add or {})}, folder / "model.safetensors", {"format": "pt"})
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, **keys}))
        return folder

    return make


def load(folder, target=None):
    return load_model(folder, dtype="float32", device="cpu", target=target)


def reference_logits(tiny, tmp_path, embeddings, head):
    config = tiny.make_config("smollm2", num_hidden_layers=1, tie_word_embeddings=False)
    model = tiny.save_checkpoint(config, tmp_path / "reference", seed=2)
    model.model.embed_tokens.weight.data.copy_(embeddings)
    model.lm_head.weight.data.copy_(head)
    return tiny.reference(model, TOKENS)[-1:]


def test_shared_embeddings_and_head(tiny, tmp_path, target, make_draft):
    draft = load(make_draft(shares_target_embeddings=True), target)
    shared = target.model.embed_tokens.weight
    expected = reference_logits(tiny, tmp_path, shared, shared)
    got = EagerRunner(draft, 64).prefill(TOKENS)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert draft.model.embed_tokens is target.model.embed_tokens


@pytest.mark.parametrize("own", [False, True], ids=["target's rows", "own rows"])
def test_reduced_head_is_minus_infinity_elsewhere(tiny, tmp_path, target, make_draft, own):
    add = {"head_token_ids": IDS}
    rows = torch.randn(6, 72)
    if own:
        add["lm_head.weight"] = rows
    keys = {"shares_target_embeddings": True, "reduced_head_size": 6, "own_head": own}
    draft = load(make_draft(add=add, **keys), target)
    shared = target.model.embed_tokens.weight
    head = shared.clone()
    if own:
        head[IDS] = rows
    expected = reference_logits(tiny, tmp_path, shared, head)
    got = EagerRunner(draft, 64).prefill(TOKENS)
    assert got.shape == (1, 97)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got[:, IDS], expected[:, IDS], rtol=1e-4, atol=1e-4)
    others = torch.ones(97, dtype=torch.bool)
    others[IDS] = False
    assert (got[:, others] == -torch.inf).all()
    assert (got.softmax(-1)[:, others] == 0).all()


@pytest.mark.parametrize("tied", [True, False])
def test_reduced_head_without_a_target(make_draft, tied):
    embeddings = torch.randn(97, 72)
    add = {"head_token_ids": IDS, "model.embed_tokens.weight": embeddings}
    if not tied:
        add["lm_head.weight"] = torch.randn(6, 72)
    draft = load(make_draft(add=add, tied=tied, reduced_head_size=6))
    logits = EagerRunner(draft, 64).prefill(TOKENS)
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == IDS.tolist()
    if tied:
        assert torch.equal(draft.lm_head.weight, embeddings[IDS])


def test_predicted_memory_of_a_borrowing_draft(target, make_draft):
    keys = {"shares_target_embeddings": True, "reduced_head_size": 6}
    folder = make_draft(add={"head_token_ids": IDS}, **keys)
    draft = load(folder, target)
    borrowed = target.model.embed_tokens.weight.numel()
    predicted = predict_memory(load_config(folder), torch.float32, 10)
    own = sum(p.numel() for p in draft.parameters()) - borrowed
    assert predicted["weights"] == own * 4


def test_target_is_needed(make_draft):
    with pytest.raises(ValueError, match="give target="):
        load(make_draft(shares_target_embeddings=True))


def test_target_of_another_width(tiny, tmp_path, make_draft):
    tiny.save_checkpoint(tiny.make_config("llama2"), tmp_path / "other")
    other = load(tmp_path / "other")
    with pytest.raises(ValueError, match=r"hidden size 72.*48"):
        load(make_draft(shares_target_embeddings=True), other)


def test_target_of_another_dtype(target, make_draft):
    folder = make_draft(shares_target_embeddings=True)
    with pytest.raises(ValueError, match=r"bfloat16.*float32"):
        load_model(folder, dtype="bfloat16", device="cpu", target=target)


def test_tied_and_shared_contradict(target, make_draft):
    folder = make_draft(shares_target_embeddings=True, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="tie_word_embeddings must be false"):
        load(folder, target)


@pytest.mark.parametrize(
    "ids", [[0, 4, 3, 10, 50, 96], [0, 3, 3, 10, 50, 96], [0, 3, 4, 10, 50, 97]]
)
def test_head_token_ids_are_checked(target, make_draft, ids):
    keys = {"shares_target_embeddings": True, "reduced_head_size": 6}
    folder = make_draft(add={"head_token_ids": torch.tensor(ids)}, **keys)
    with pytest.raises(ValueError, match="head_token_ids"):
        load(folder, target)


@pytest.mark.parametrize(
    ("add", "says"),
    [
        ({}, "missing keys: head_token_ids"),
        ({"head_token_ids": IDS, "lm_head.weight": torch.ones(6, 72)}, "unexpected keys: lm_head"),
        (
            {"head_token_ids": IDS, "model.embed_tokens.weight": torch.ones(97, 72)},
            "unexpected keys: model.embed",
        ),
    ],
    ids=["no ids", "a head nobody asked for", "embeddings nobody asked for"],
)
def test_file_and_config_must_agree(target, make_draft, add, says):
    keys = {"shares_target_embeddings": True, "reduced_head_size": 6}
    with pytest.raises(ValueError, match=says):
        load(make_draft(add=add, **keys), target)
