"""The training loop: batches, schedule, checkpoints, held-out measurements."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from experiments.distillation.draft import Draft
from experiments.distillation.losses import LOSSES, gather_top, kl, total_variation
from experiments.distillation.store import Sequence, answer_positions, pad_tokens

CHECKPOINT = "checkpoint.pt"
CHUNK = 64  # sequences sorted by length among each other, so that batches are little padded


@dataclass(frozen=True)
class TrainingPlan:
    """How to train. The schedule is a function of the step alone, so a resumed run follows it.

    ``batch_tokens``: padded size of a batch, per process. ``tv_from``: fraction of the steps after
    which the total-variation loss takes over (1.0: never, 0.0: from the start).
    """

    steps: int = 4000
    batch_tokens: int = 1100
    learning_rate: float = 1e-3
    warmup: int = 100
    final_fraction: float = 0.03
    weight_decay: float = 0.01
    tv_from: float = 1.0
    save_every: int = 200
    evaluate_every: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_tokens", "save_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate {self.learning_rate} must be positive")
        if not 0.0 <= self.tv_from <= 1.0:
            raise ValueError(f"tv_from {self.tv_from} is outside [0, 1]")

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to ``final_fraction`` of the peak."""
        cosine = 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / self.steps))
        scale = self.final_fraction + (1.0 - self.final_fraction) * cosine
        return self.learning_rate * scale * min(1.0, (step + 1) / max(1, self.warmup))


class Quality(NamedTuple):
    """Held-out measurements, means over answer positions.

    ``agreement``: the draft's argmax is the target's. ``overlap``: sum min(p, q) at temperature 1,
    which is the acceptance of a first child. ``loss``: the cross-entropy, nats.
    """

    agreement: float
    overlap: float
    loss: float
    positions: int


class Batch(NamedTuple):
    tokens: Tensor  # [b, t]
    rows: Tensor  # [A] flat positions that predict answer tokens
    ids: Tensor  # [A, K]
    logprobs: Tensor  # [A, K]


def make_batch(sequences: list[Sequence], device: Any) -> Batch:
    """Stack sequences; one without scores teaches its own tokens, with probability 1 each."""
    tops = [known_top(s) for s in sequences]
    columns = max(ids.shape[1] for ids, _ in tops)
    ids = np.zeros((sum(len(top[0]) for top in tops), columns), np.int64)
    logprobs = np.full(ids.shape, -np.inf, np.float32)
    row = 0
    for some_ids, some_logprobs in tops:
        rows, width = some_ids.shape
        ids[row : row + rows, :width] = some_ids
        logprobs[row : row + rows, :width] = some_logprobs
        row += rows
    tokens = pad_tokens(sequences)
    positions = answer_positions(sequences, tokens.shape[1])
    parts = (tokens, positions, torch.from_numpy(ids), torch.from_numpy(logprobs))
    return Batch(*(part.to(device) for part in parts))


def known_top(sequence: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log-probabilities) [a, K]: the target's, or the text's own tokens with K = 1."""
    if sequence.top_ids is not None and sequence.top_logprobs is not None:
        return sequence.top_ids, sequence.top_logprobs
    own = sequence.tokens[sequence.prompt_length :, None]
    return own, np.zeros(own.shape, np.float32)


def epoch_batches(lengths: list[int], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices of the sequences of each batch of one epoch; the same for the same seed."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(lengths)).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), CHUNK):
        batch: list[int] = []
        for index in sorted(order[start : start + CHUNK], key=lambda i: lengths[i]):
            if batch and (len(batch) + 1) * lengths[index] > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(index)
        batches.append(batch)
    return [batches[i] for i in rng.permutation(len(batches))]


@torch.no_grad()
def evaluate(
    model: Any,
    sequences: list[Sequence],
    head_ids: Tensor | None,
    row_of: Tensor | None,
    device: Any,
) -> Quality:
    """Measure on held-out sequences, eight at a time, shortest first."""
    model.eval()
    totals, positions = np.zeros(3), 0
    ordered = sorted(sequences, key=lambda s: len(s.tokens))
    for start in range(0, len(ordered), 8):
        batch = make_batch(ordered[start : start + 8], device)
        logits = model(batch.tokens, batch.rows)
        columns, p = gather_top(batch.ids, batch.logprobs, row_of)
        best = logits.argmax(-1)
        best = best if head_ids is None else head_ids[best]
        size = len(batch.rows)
        agreement = (best == batch.ids[:, 0]).float().mean()
        values = (agreement, 1.0 - total_variation(logits, columns, p), kl(logits, columns, p))
        totals += np.array([float(value) for value in values]) * size
        positions += size
    model.train()
    agreement, overlap, loss = (totals / positions).tolist()
    return Quality(agreement, overlap, loss, positions)


class Trainer:
    """Trains a draft on scored sequences; the state on disk is enough to go on after a kill."""

    def __init__(
        self,
        draft: Draft,
        train: list[Sequence],
        held_out: list[Sequence],
        plan: TrainingPlan,
        folder: Path,
        accelerator: Any,
    ):
        self.plan, self.folder, self.accelerator = plan, folder, accelerator
        self.train_set, self.held_out = train, held_out
        self.device = accelerator.device
        matrices = [p for p in draft.parameters() if p.dim() > 1 and p.requires_grad]
        vectors = [p for p in draft.parameters() if p.dim() <= 1 and p.requires_grad]
        groups = [
            {"params": matrices, "weight_decay": plan.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.draft = draft
        optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95), fused=True)
        self.model, self.optimizer = accelerator.prepare(draft, optimizer)
        self.head_ids = draft.head_ids
        self.row_of = None
        if self.head_ids is not None:
            vocabulary = draft.config.vocab_size
            self.row_of = torch.full((vocabulary,), -1, device=self.device)
            self.row_of[self.head_ids] = torch.arange(len(self.head_ids), device=self.device)
        self.step, self.tokens = 0, 0
        self.losses: list[float] = []  # since the last measurement
        self.history: list[dict[str, float]] = []

    def run(self) -> Quality:
        """Train from where the checkpoint stands to the last step; the final held-out quality."""
        self._resume()
        plan, main = self.plan, self.accelerator.is_main_process
        if not self.history:
            self._measure(None)
        bar = tqdm(total=plan.steps, initial=self.step, desc="train", unit="step", disable=not main)
        for batch in self._batches():
            self.losses.append(self._update(batch))
            bar.update()
            if self.step % plan.evaluate_every == 0 or self.step == plan.steps:
                quality = self._measure(float(np.mean(self.losses)))
                bar.set_postfix(agree=f"{quality.agreement:.3f}", overlap=f"{quality.overlap:.3f}")
                self.losses = []
            if self.step % plan.save_every == 0 or self.step == plan.steps:
                self._save()
        bar.close()
        last = self.history[-1]
        return Quality(last["agreement"], last["overlap"], last["loss"], int(last["positions"]))

    def _batches(self):
        """The rest of the training, from ``self.step``; every process takes its own batches."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        lengths = [len(s.tokens) for s in self.train_set]
        epoch, before = 0, 0
        while self.step < self.plan.steps:
            batches = epoch_batches(lengths, self.plan.batch_tokens, self.plan.seed + epoch)
            batches += batches[: -len(batches) % world]  # every process takes as many steps
            mine = batches[rank::world]
            for index in range(max(0, self.step - before), len(mine)):
                if self.step >= self.plan.steps:
                    return
                yield [self.train_set[i] for i in mine[index]]
            epoch, before = epoch + 1, before + len(mine)

    def _update(self, sequences: list[Sequence]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate(self.step)
        batch = make_batch(sequences, self.device)
        columns, p = gather_top(batch.ids, batch.logprobs, self.row_of)
        with self.accelerator.autocast():
            logits = self.model(batch.tokens, batch.rows)
        name = "tv" if self.step >= self.plan.tv_from * self.plan.steps else "kl"
        loss = LOSSES[name](logits, columns, p)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += sum(len(s.tokens) for s in sequences) * self.accelerator.num_processes
        return float(loss.detach())

    def _measure(self, loss: float | None) -> Quality:
        quality = evaluate(self.draft, self.held_out, self.head_ids, self.row_of, self.device)
        entry = {"step": self.step, "tokens": self.tokens, **quality._asdict()}
        self.history.append(entry if loss is None else {**entry, "train_loss": loss})
        if self.accelerator.is_main_process:
            text = "".join(json.dumps(entry) + "\n" for entry in self.history)
            (self.folder / "history.jsonl").write_text(text, encoding="utf-8")
        return quality

    def _save(self) -> None:
        if not self.accelerator.is_main_process:
            return
        state = {
            "plan": asdict(self.plan),
            "draft": self.draft.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "losses": self.losses,
            "history": self.history,
        }
        part = self.folder / (CHECKPOINT + ".part")
        torch.save(state, part)
        os.replace(part, self.folder / CHECKPOINT)

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["plan"] != asdict(self.plan):
            changed = [k for k, v in asdict(self.plan).items() if state["plan"].get(k) != v]
            raise ValueError(
                f"{str(path)!r} was written with another plan (differs in {', '.join(changed)}); "
                "use the same options, or another work folder"
            )
        self.draft.load_state_dict(state["draft"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens = state["step"], state["tokens"]
        self.losses, self.history = state["losses"], state["history"]
