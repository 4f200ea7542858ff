"""The four stages of a distillation: text, targets, train, export."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.distillation.draft import (
    HEAD_IDS,
    Draft,
    DraftShape,
    frequent_tokens,
    read_tensors,
)
from experiments.distillation.report import plot_history, write_card
from experiments.distillation.store import Sequence, read_shard, read_store
from experiments.distillation.targets import has_scores, score_store
from experiments.distillation.text import (
    check_text,
    encode_prompts,
    generate_store,
    read_prompts,
    read_text,
)
from experiments.distillation.training import Quality, Trainer, TrainingPlan

STAGES = ("text", "targets", "train", "export")


@dataclass(frozen=True)
class TextPlan:
    """Which text to distil on; no ``texts``: the target answers the prompts itself.

    ``scored``: how many sequences of given text the target is run on to store its top tokens
    (None: all; text that brings them along costs no run). The others teach their own tokens only: a
    noisier lesson, but the pass of a target that is many times the draft's size costs several times
    what training on the sequence once does.
    """

    texts: tuple[Path, ...] = ()
    prompts: Path | None = None
    samples: int = 8
    max_new_tokens: int = 256
    window: int = 256
    batch_size: int = 16
    top: int = 64
    scored: int | None = None
    held_out: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "max_new_tokens", "batch_size", "top"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1")
        if self.scored is not None and self.scored < 0:
            raise ValueError(f"scored {self.scored} must not be negative")
        if self.window < 2:
            raise ValueError(f"window {self.window} must be at least 2")
        if not 0.0 < self.held_out < 1.0:
            raise ValueError(f"held_out {self.held_out} must be a fraction between 0 and 1")
        if self.texts and self.prompts is not None:
            raise ValueError("give a text or prompts, not both")


@dataclass
class Target:
    """The target model on its device, with what text generation needs to know about it."""

    name: str
    model: Any
    tokenizer: Any
    stop_ids: list[int]


def load_target(name: str, device: Any, dtype: torch.dtype) -> Target:
    """A Hub id, a folder, a GGUF file or ``embedded``; ValueError for what cannot be used."""
    from transformers import AutoModelForCausalLM

    from model_fi import check_config
    from sequoia.pair import find_source, load_tokenizer, stop_ids

    source = find_source(name, None, "target")
    check_config(source.config, source.config.max_position_embeddings)
    tokenizer = load_tokenizer(source)
    options = {"gguf_file": source.gguf_file} if source.gguf_file else {}
    model = AutoModelForCausalLM.from_pretrained(source.path, dtype=dtype, **options)
    model = model.eval().requires_grad_(False).to(device)
    return Target(name, model, tokenizer, list(stop_ids(source, tokenizer)))


def gather_text(target: Target, plan: TextPlan, work: Path, accelerator: Any) -> list[Sequence]:
    """Stage text: given or generated, in the order it will be stored."""
    if plan.texts:
        parts = [read_text(path, target.tokenizer, plan.window) for path in plan.texts]
        sequences = [sequence for part in parts for sequence in part]
    else:
        prompts = encode_prompts(read_prompts(plan.prompts), target.tokenizer)
        generate_store(
            target.model,
            prompts,
            work / "text",
            samples=plan.samples,
            max_new_tokens=plan.max_new_tokens,
            batch_size=plan.batch_size,
            stop_ids=target.stop_ids,
            top=stored_top(target, plan),
            seed=plan.seed,
            rank=accelerator.process_index,
            world=accelerator.num_processes,
        )
        accelerator.wait_for_everyone()
        sequences = [s for s in read_store(work / "text") if s.num_answers > 0]
    config = target.model.config
    check_text(sequences, config.vocab_size, config.max_position_embeddings)
    order = np.random.default_rng(plan.seed).permutation(len(sequences))
    return [sequences[i] for i in order]


def stored_top(target: Target, plan: TextPlan) -> int:
    return min(plan.top, target.model.config.vocab_size)


def store_targets(
    target: Target, sequences: list[Sequence], plan: TextPlan, work: Path, accelerator: Any
) -> tuple[list[Path], list[Sequence]]:
    """Stage targets: the top log-probabilities of every answer position, once. Returns the shards
    that hold them, and the sequences that are left without."""
    top = stored_top(target, plan)
    fresh = [i for i, s in enumerate(sequences) if not has_scores(s, top)]
    left_out = set() if plan.scored is None else set(fresh[plan.scored :])
    shards = score_store(
        target.model,
        [s for i, s in enumerate(sequences) if i not in left_out],
        work / "targets",
        top=top,
        batch_size=plan.batch_size,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
    )
    accelerator.wait_for_everyone()
    return shards, [sequences[i] for i in sorted(left_out)]


def split_store(
    shards: list[Path], unscored: list[Sequence], plan: TextPlan
) -> tuple[list[Sequence], list[Sequence]]:
    """(training, held-out) sequences. Which are held out depends on their prompts only, so that a
    draft trained further (``--init``), on more text, is not measured on what it has seen.

    Unscored ones join the training as they are; held-out ones among them are not used at all.
    """
    scored = [sequence for path in shards for sequence in read_shard(path)]
    if not scored:
        raise ValueError("no scored sequence to measure on: let at least some be scored")
    share = max(plan.held_out, min(s.place for s in scored))  # at least one is held out
    held_out = [s for s in scored if s.place <= share]
    train = [s for s in scored + unscored if s.place > share]
    if not train:
        prompts = len({s.place for s in scored})
        raise ValueError(
            f"nothing is left to train on: {len(scored)} scored sequences of {prompts} prompts are "
            f"too few to hold out {plan.held_out:.1%}, and at least one prompt; give more prompts"
        )
    return train, held_out


def build_draft(
    target: Target, shape: DraftShape, train: list[Sequence], init: Path | None = None
) -> Draft:
    """The untrained draft, or the one in the folder ``init``, which must have the same shape.

    A new reduced head takes the tokens that answers use most; the head of ``init`` is cut to them
    when ``shape`` asks for fewer than it has.
    """
    answers = np.concatenate([s.tokens[s.prompt_length :] for s in train])
    counts = torch.from_numpy(np.bincount(answers, minlength=target.model.config.vocab_size))
    if init is None:
        head_ids = frequent_tokens(counts, shape.head_tokens) if shape.head_tokens else None
        return Draft(target.model, shape, head_ids)
    head_ids = read_tensors(init).get(HEAD_IDS)
    wanted = shape.head_tokens
    shape = replace(shape, head_tokens=0 if head_ids is None else len(head_ids))
    draft = Draft(target.model, shape, head_ids)
    draft.load(init)
    if head_ids is not None and 0 < wanted < len(head_ids):
        draft.cut_head(frequent_tokens(counts[head_ids], wanted))
    return draft


def export(
    draft: Draft, tokenizer: Any, trainer: Trainer, quality: Quality, out: Path, facts: dict
) -> None:
    """Stage export: an ordinary Hugging Face folder with a model card, in bf16."""
    size = draft.save(out, torch.bfloat16)
    if not draft.config.shares_target_embeddings:
        tokenizer.save_pretrained(out)  # its ids are the target's, so is its tokenizer
    facts = facts | quality._asdict() | {"megabytes": size / 1e6, "dtype": "bfloat16"}
    facts["target_layers"] = ", ".join(map(str, draft.target_layers))
    facts["training"] = f"{trainer.step} steps, {trainer.tokens} tokens"
    facts["held_out"] = len(trainer.held_out)
    write_card(out, draft.config, facts)


def distil(
    name: str,
    out: Path,
    work: Path,
    text_plan: TextPlan,
    shape: DraftShape,
    plan: TrainingPlan,
    accelerator: Any,
    init: Path | None = None,
    until: str = "export",
    command: str = "",
) -> Quality | None:
    """All stages up to ``until``; returns the held-out quality once the draft is trained."""
    target = load_target(name, accelerator.device, target_dtype(accelerator))
    shape.check(target.model.config)
    work.mkdir(parents=True, exist_ok=True)
    sequences = gather_text(target, text_plan, work, accelerator)
    if until == "text":
        return None
    shards, unscored = store_targets(target, sequences, text_plan, work, accelerator)
    if until == "targets":
        return None
    train, held_out = split_store(shards, unscored, text_plan)
    draft = build_draft(target, shape, train, init)
    trainer = Trainer(draft, train, held_out, plan, work, accelerator)
    del target.model  # the draft keeps what it shares
    quality = trainer.run()
    if accelerator.is_main_process:
        plot_history(trainer.history, work / "training.png")
        if until == "export":
            answers = sum(s.num_answers for s in train)
            text = f"{len(train)} sequences, {answers} answer tokens of the target's"
            text = text if not text_plan.texts else f"{len(train)} sequences, {answers} tokens"
            facts = {"target": name, "command": command, "top": text_plan.top, "text": text}
            export(draft, target.tokenizer, trainer, quality, out, facts)
    accelerator.wait_for_everyone()
    return quality


def target_dtype(accelerator: Any) -> torch.dtype:
    return torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32


def make_accelerator(device: str, precision: str) -> Any:
    """accelerate's process group; ``auto`` precision is bf16 on CUDA, fp32 on a CPU."""
    from accelerate import Accelerator

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' asked for, but torch finds no CUDA device")
    if precision == "auto":
        cuda = device != "cpu" and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = "bf16" if cuda else "fp32"
    mixed = "bf16" if precision == "bf16" else "no"
    return Accelerator(cpu=device == "cpu", mixed_precision=mixed)
