"""The third party's verifier that CONTRIBUTING.md shows: that very code is proven, and decodes."""

import re
from pathlib import Path

import pytest
import third_party
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import sequoia
import verifiers
from model_fi import load_model
from sequoia.pair import Pair
from verifiers.rrs import draw_independent

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALKERS = {"warm_siblings": verifiers.TokenLevel, "warm_siblings/traversal": verifiers.Traversal}


def blocks(language):
    """Fenced blocks of a language: every second piece between the fences."""
    fenced = [text.partition("\n") for text in re.split(r"^```", TEXT, flags=re.M)[1::2]]
    return [body for name, _, body in fenced if name == language]


def stable(report):
    """Without what rounding may change from machine to machine: the last digits, and the worlds
    that are told apart by them only."""
    return re.sub(r"error \S+|\d+ worlds|(0\.\d{9})\d+", r"\1", str(report))


def test_contributing_shows_this_code_and_it_is_short():
    (code,) = blocks("python")
    assert code == Path(third_party.__file__).read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 60


@pytest.mark.parametrize("name", WALKERS)
def test_it_is_lossless_and_the_report_shown_is_real(name):
    report = verifiers.check_lossless(WALKERS[name](third_party.WarmSiblings()))
    assert report.ok, str(report)
    assert report.largest_error < 1e-12
    proofs = stable(blocks("")[0]).splitlines()
    assert stable(report) == proofs[list(WALKERS).index(name)]


class OtherDraw(third_party.WarmSiblings):
    """Every child from q, accepted as if its siblings were warm."""

    def draw(self, rows, num_children, uniforms):
        return draw_independent(rows, num_children, uniforms)


class ForgetsRejections(third_party.WarmSiblings):
    """The bonus is drawn as if no child had been tried."""

    def plan(self, target, draft, drafted, budget):
        plan = super().plan(target, draft, drafted, budget)
        return plan._replace(residual=target.probs)


@pytest.mark.parametrize("walker", WALKERS.values())
@pytest.mark.parametrize("broken", [OtherDraw, ForgetsRejections])
def test_a_broken_variant_is_caught(broken, walker):
    report = verifiers.check_lossless(walker(broken()))
    assert not report.ok
    assert report.failures[0].token is not None


def test_the_report_of_a_broken_variant_is_the_one_shown():
    report = verifiers.check_lossless(verifiers.TokenLevel(OtherDraw()))
    assert stable(report) == stable(blocks("")[1].rstrip("\n"))


# ---------------------------------------------------------------- in the decoder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two unrelated tiny models: most of the second's drafts are bad."""
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    loaded = []
    for seed in range(2):
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp(f"model{seed}")
        LlamaForCausalLM(config).save_pretrained(folder)
        loaded.append(load_model(str(folder), dtype=torch.float32))
    return loaded


@pytest.mark.parametrize("name", WALKERS)
def test_the_decoder_takes_the_object(name, models):
    target, draft = models
    verifier = WALKERS[name](third_party.WarmSiblings())
    params = sequoia.SamplingParams(max_new_tokens=60, temperature=1.0, seed=0)
    decoder = sequoia.SpeculativeDecoder(Pair(None, target, draft), "kary:2^3", verifier)
    output = decoder.generate([1, 2], params)
    assert len(output.token_ids) == 60
    assert output.verifier == name
    assert 0 < sum(output.accepted_per_step) < 60  # some are accepted, some are not
    greedy = sequoia.SamplingParams(max_new_tokens=40, temperature=0)
    plain = sequoia.AutoregressiveDecoder(Pair(None, target, None)).generate([1, 2], greedy)
    assert decoder.generate([1, 2], greedy).token_ids == plain.token_ids


def test_a_draft_equal_to_the_target_has_its_first_child_accepted_always(models):
    twins = Pair(None, models[0], models[0])
    params = sequoia.SamplingParams(max_new_tokens=60, temperature=1.0, seed=0)
    verifier = verifiers.TokenLevel(third_party.WarmSiblings())
    output = sequoia.SpeculativeDecoder(twins, "chain:3", verifier).generate([1, 2], params)
    assert output.accepted_per_step == [2] * 20


def test_an_object_that_is_no_verifier_is_named_with_what_it_lacks():
    class Half:
        name = "half"
        max_children = None

        def propose(self, rows, num_children, uniforms): ...

    with pytest.raises(ValueError, match=r"Half.* is no verifier: it has no 'verify'"):
        verifiers.check_lossless(Half())
