"""Our pass against transformers' forward, family by family, to fp32 rounding."""

import pytest
import torch

from model_fi import EagerRunner, MatmulAttention, SdpaAttention, load_model, tree_mask

FAMILY_NAMES = [
    "llama2",
    "llama3",
    "llama3.2",
    "tinyllama",
    "smollm2",
    "vicuna",
    "llama-bias",
    "mistral",
    "qwen2",
    "qwen3",
]
TREE = (-1, 0, 0, 1, 1, 2, 3, 5)  # two branches, uneven
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def ancestor_mask(parents):
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return mask


def depths(parents):
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    return torch.tensor(depth)


def path_to(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tree_pass(runner, tokens, nodes, parents, bucket):
    """Prefill all but the last token, then one pass over the tree rooted in it: logits [m, V]."""
    n = len(tokens)
    if n > 1:
        runner.prefill(tokens[:-1])
    positions = n - 1 + depths(parents)
    slots = n - 1 + torch.arange(len(parents))
    mask = tree_mask(torch.tensor(n), ancestor_mask(parents), bucket)
    return runner.forward(nodes, positions, slots, mask)


@pytest.fixture(scope="module")
def pairs(tiny, tmp_path_factory):
    """name -> (transformers' model, ours), loaded from the same folder, made once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            theirs = tiny.save_checkpoint(tiny.make_config(name), folder)
            made[name] = theirs, load_model(folder, dtype="float32", device="cpu")
        return made[name]

    return get


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_prompt(tiny, pairs, name):
    theirs, ours = pairs(name)
    tokens = torch.randint(0, 97, (150,))  # llama3's original length is 64
    runner = EagerRunner(ours, 192)
    logits = runner.forward(
        tokens, torch.arange(150), torch.arange(150), torch.ones(150, 150).tril().bool()
    )
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, tiny.reference(theirs, tokens), **TOLERANCE)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_prefill_in_chunks_then_continuation(tiny, pairs, name):
    theirs, ours = pairs(name)
    tokens = torch.randint(0, 97, (150,))
    expected = tiny.reference(theirs, tokens)
    runner = EagerRunner(ours, 192)
    torch.testing.assert_close(
        runner.prefill(tokens[:101], chunk=32), expected[100:101], **TOLERANCE
    )
    torch.testing.assert_close(runner.prefill(tokens[101:], 101), expected[149:], **TOLERANCE)
    at = torch.tensor([149])  # the last token once more, alone, in the same slot
    again = runner.forward(tokens[149:], at, at, torch.arange(192).le(149)[None])
    torch.testing.assert_close(again, expected[149:], **TOLERANCE)


@pytest.mark.parametrize("backend", [MatmulAttention(), SdpaAttention()], ids=lambda b: b.name)
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_tree_pass_equals_one_pass_per_path(tiny, pairs, name, backend):
    theirs, ours = pairs(name)
    tokens = torch.randint(0, 97, (70,))
    nodes = torch.cat((tokens[-1:], torch.randint(0, 97, (len(TREE) - 1,))))
    runner = EagerRunner(ours, 192, backend)
    logits = tree_pass(runner, tokens, nodes, TREE, 128)
    for node in range(len(TREE)):
        path = path_to(TREE, node)
        expected = tiny.reference(theirs, torch.cat((tokens[:-1], nodes[path])))[-1]
        torch.testing.assert_close(logits[node], expected, **TOLERANCE)


def test_compacted_branch_continues_like_plain_text(tiny, pairs):
    theirs, ours = pairs("smollm2")
    tokens = torch.randint(0, 97, (20,))
    nodes = torch.cat((tokens[-1:], torch.randint(0, 97, (len(TREE) - 1,))))
    runner = EagerRunner(ours, 64)
    tree_pass(runner, tokens, nodes, TREE, 64)
    path = [0, 2, 5, 7]  # the branch that is not the first
    runner.cache.compact(19 + torch.tensor(path), torch.tensor(19))
    text = torch.cat((tokens[:-1], nodes[path], torch.tensor([5])))
    expected = tiny.reference(theirs, text)[-1:]
    torch.testing.assert_close(runner.prefill(text[-1:], 23), expected, **TOLERANCE)


def test_only_the_rows_asked_for(pairs):
    _, ours = pairs("llama2")
    runner = EagerRunner(ours, 64)
    at, tokens = torch.arange(10), torch.randint(0, 97, (10,))
    mask = torch.ones(10, 10).tril().bool()
    whole = runner.forward(tokens, at, at, mask)
    some = runner.forward(tokens, at, at, mask, torch.tensor([7, 2]))
    assert some.shape == (2, 97)
    torch.testing.assert_close(some, whole[[7, 2]])


@pytest.mark.parametrize("kind", ["llama3", "yarn", "linear", "longrope"])
@pytest.mark.parametrize("length", [60, 200])
def test_rope_within_and_beyond_the_original_length(tiny, tmp_path, kind, length):
    config = tiny.build_config("llama", rope_scaling=tiny.ROPES[kind])
    theirs = tiny.save_checkpoint(config, tmp_path)
    ours = load_model(tmp_path, dtype="float32", device="cpu", max_length=length)
    tokens = torch.randint(0, 97, (length,))
    last = EagerRunner(ours, length + 8).prefill(tokens)
    torch.testing.assert_close(last, tiny.reference(theirs, tokens)[-1:], **TOLERANCE)


def test_longrope_uses_one_table_for_the_whole_run(tiny, tmp_path):
    """A short text in a long run has the long table: its keys must fit what follows."""
    config = tiny.build_config("llama", rope_scaling=tiny.ROPES["longrope"])
    theirs = tiny.save_checkpoint(config, tmp_path)
    ours = load_model(tmp_path, dtype="float32", device="cpu", max_length=200)
    tokens = torch.randint(0, 97, (100,))
    runner = EagerRunner(ours, 208)
    runner.prefill(tokens[:30])
    last = runner.prefill(tokens[30:], 30)
    torch.testing.assert_close(last, tiny.reference(theirs, tokens)[-1:], **TOLERANCE)


@pytest.mark.parametrize(("head_dim", "group"), [(64, 3), (128, 7)])
def test_realistic_shape(tiny, tmp_path, head_dim, group):
    heads = group * 2
    config = tiny.build_config(
        "llama",
        hidden_size=32 * heads,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=head_dim,
        num_hidden_layers=2,
        intermediate_size=512,
        vocab_size=1000,
        max_position_embeddings=4096,
        rope_theta=100000.0,
    )
    theirs = tiny.save_checkpoint(config, tmp_path)
    ours = load_model(tmp_path, dtype="float32", device="cpu")
    start, length = 3200, 800  # the text begins at position 3200: positions to 4k, less work
    tokens = torch.randint(0, 1000, (length,))
    nodes = torch.cat((tokens[-1:], torch.randint(0, 1000, (len(TREE) - 1,))))
    runner = EagerRunner(ours, 4096)
    for first in range(0, length - 1, 400):
        at = start + torch.arange(first, min(first + 400, length - 1))
        mask = (torch.arange(4096) <= at[:, None]) & (torch.arange(4096) >= start)
        runner.forward(tokens[at - start], at, at, mask, slice(0, 0))
    root = start + length - 1
    seen = torch.arange(4096) >= start
    mask = tree_mask(torch.tensor(root + 1), ancestor_mask(TREE), 4096) & seen
    logits = runner.forward(nodes, root + depths(TREE), root + torch.arange(len(TREE)), mask)
    path = path_to(TREE, 7)
    text = torch.cat((tokens[:-1], nodes[path]))
    expected = tiny.reference(theirs, text, start)
    torch.testing.assert_close(logits[0], expected[length - 1], **TOLERANCE)
    torch.testing.assert_close(logits[7], expected[-1], **TOLERANCE)


def test_bf16_stays_close_to_fp32(tiny, pairs, tmp_path):
    theirs = tiny.save_checkpoint(tiny.make_config("llama3.2"), tmp_path)
    ours = load_model(tmp_path, dtype="bfloat16", device="cpu")
    tokens = torch.randint(0, 97, (80,))
    runner = EagerRunner(ours, 128)
    assert runner.cache.k.dtype == torch.bfloat16
    last = runner.prefill(tokens)
    assert last.dtype == torch.float32
    expected = tiny.reference(theirs, tokens)[-1:]
    assert (last - expected).abs().max() < 0.1 * expected.abs().max()
