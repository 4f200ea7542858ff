"""Static acceptance: exact per position, teacher-forced over text, one pass of each model a text.

At every position of a text both models' rows are known, and :func:`verifiers.acceptance` gives the
probability that each child is accepted there: no token is sampled, so few positions say a lot.

Per depth: a node of depth d is only reached where the draft has just been right d times, which
happens in easy places, while a root follows a token that the draft got wrong. So position t counts
at depth d with the probability that a long tree stands there at depth d while decoding this very
text: `P[t+1, d+1] = P[t, d] s[t]` and `P[t+1, 0] = sum_d P[t, d] (1 - s[t])`, with s[t] the
probability that the text's token was an accepted draft rather than a bonus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import verifiers
from model_fi import EagerRunner, causal_mask
from sequoia.config import SamplingParams
from sequoia.pair import Pair
from sequoia.profiling.journal import Journal
from sequoia.profiling.ratios import table_of
from sequoia.profiling.texts import Progress, Text, quiet
from tree_builder import AcceptanceTable
from verifiers.acceptance import acceptance, rule_name
from verifiers.probs import Sampling, make_rows

CHUNK = 64  # positions per pass: bounds the memory that rows of a large vocabulary take
BUCKET = 64
SURVIVAL_CHILDREN = 2  # children per node that are assumed where depths are weighted
VECTOR_RULES = ("greedy", "target_match", "rrs", "rrs_wor")  # A[b][j] does not depend on b


@dataclass(frozen=True)
class StaticSettings:
    """What is computed at every position.

    rules         names of ``verifiers.NAMES``; a traversal form gets its token-level rule's
                  table, a lower bound
    max_children  B of the tables (a rule that takes fewer gets fewer)
    num_depths    D: depths told apart, the last one also serving those below it
    positions     most positions of a text that are evaluated, evenly spaced
    samples       sampled rejections per row, only for rrs_wor with three children and more
    """

    rules: tuple[str, ...] = ("rrs_wor",)
    max_children: int = 8
    num_depths: int = 1
    positions: int = 64
    samples: int = 16

    def __post_init__(self) -> None:
        for name in self.rules:
            rule_name(name)
        for name in ("max_children", "num_depths", "positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.rules or self.samples < 2:
            raise ValueError(f"rules {self.rules} and samples {self.samples}: give 1 and 2 or more")


def profile_static(
    pair: Pair,
    texts: Sequence[Text],
    params: SamplingParams,
    settings: StaticSettings,
    journal: Journal,
    progress: Progress = quiet,
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, AcceptanceTable]:
    """One acceptance table per rule, standard errors over the texts.

    Temperature and filters are those of ``params``; at T = 0 every rule accepts as ``greedy``
    does, and that table alone is measured. ValueError for a pair without a draft, no texts, a
    text that is too long for the models, and ``greedy`` at T > 0.
    """
    rules = sampled_rules(settings.rules, params)
    if pair.draft is None:
        raise ValueError("acceptance needs a draft model: this pair has none")
    if not texts:
        raise ValueError("no texts to measure acceptance on")
    profiler = _Profiler(pair, max(len(text.ids) for text in texts), params, settings, rules)
    for text in progress(texts):
        key = f"static {text.key}"
        if key not in journal:
            journal.add(key, profiler.measure(text))
    records = [journal[f"static {text.key}"] for text in texts]
    tables = {}
    for rule in rules:
        accepted = [np.array(record["accepted"][rule]) for record in records]
        width = accepted[0].shape[1]
        visited = [
            np.repeat(np.array(record["visited"])[:, None], width, axis=1) for record in records
        ]
        about = {**(provenance or {}), "rule": rule, "how": "static", "texts": len(texts)}
        if "/" in rule:
            about["note"] = "the token-level rule's acceptance: a lower bound for traversal"
        tables[rule] = table_of(accepted, visited, about)
    return tables


def sampled_rules(rules: Sequence[str], params: SamplingParams) -> tuple[str, ...]:
    """The rules that apply at this temperature: at T = 0 only greedy. ValueError for greedy at
    T > 0."""
    if params.greedy:
        return ("greedy",)
    if "greedy" in rules:
        raise ValueError(
            f"the greedy rule decodes at temperature 0 only, got {params.temperature}: "
            "leave it out or use temperature 0"
        )
    return tuple(dict.fromkeys(rules))


class _Profiler:
    """Both models with room for the longest text."""

    def __init__(
        self,
        pair: Pair,
        longest: int,
        params: SamplingParams,
        settings: StaticSettings,
        rules: Sequence[str],
    ) -> None:
        if longest > pair.max_length:
            raise ValueError(f"a text of {longest} tokens: the models take {pair.max_length}")
        slots = -(-longest // BUCKET) * BUCKET
        draft: Any = pair.draft
        self.target, self.draft = EagerRunner(pair.target, slots), EagerRunner(draft, slots)
        self.vocab_size, self.params, self.settings = pair.vocab_size, params, settings
        device = self.target.device
        self.sampling = Sampling(
            torch.tensor(1.0 if params.greedy else params.temperature, device=device),
            torch.tensor(params.top_p, device=device) if params.top_p < 1 else None,
            params.top_k,
        )
        self.widths = {rule: self._width(rule) for rule in rules}

    def _width(self, rule: str) -> int:
        most = verifiers.make(rule).max_children
        wanted = self.settings.max_children
        return wanted if most is None else min(wanted, most)

    def measure(self, text: Text) -> dict[str, Any]:
        """Sums over one text: `visited` [D], and per rule `accepted` [D, B, B]."""
        rng = torch.Generator(device=self.target.device).manual_seed(self.params.seed or 0)
        first = max(text.start, 1) - 1  # the row that predicts the first token asked for
        count = len(text.ids) - 1 - first
        if count < 1:  # the target had nothing to say
            depths = self.settings.num_depths
            empty = {rule: np.zeros((depths, b, b)) for rule, b in self.widths.items()}
            return _plain(np.zeros(depths), empty)
        chosen = np.unique(np.linspace(0, count - 1, min(self.settings.positions, count)).round())
        survival = np.empty(count)
        rates: dict[str, list[np.ndarray]] = {rule: [] for rule in self.widths}
        for start, p, q in self._rows(text.ids, first):
            tokens = torch.tensor(text.ids[start + 1 : start + 1 + len(p)], device=p.device)
            offset = start - first
            survival[offset : offset + len(p)] = self._survival(p, q, tokens).cpu().numpy()
            wanted = [int(t) - offset for t in chosen if offset <= t < offset + len(p)]
            if wanted:
                for rule, width in self.widths.items():
                    rates[rule].append(self._rates(rule, p[wanted], q[wanted], width, rng))
        weights = depth_weights(survival, self.settings.num_depths)[chosen.astype(int)]  # [t, D]
        accepted = {
            rule: np.einsum("td,tbj->dbj", weights, np.concatenate(parts))
            for rule, parts in rates.items()
        }
        return _plain(weights.sum(0), accepted)

    def _rows(self, ids: list[int], first: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(position, p, q) for pieces [t, V] of the rows ``first .. len(ids) - 2``."""
        tokens = torch.tensor(ids[:-1], device=self.target.device)
        if first:
            for runner in (self.target, self.draft):
                runner.prefill(tokens[:first])
        for start in range(first, len(tokens), CHUNK):
            end = min(start + CHUNK, len(tokens))
            positions = torch.arange(start, end, device=tokens.device)
            mask = causal_mask(positions, min(-(-end // BUCKET) * BUCKET, self.target.cache.slots))
            p, q = (
                make_rows(
                    runner.forward(tokens[start:end], positions, positions, mask)[
                        :, : self.vocab_size
                    ],
                    self.sampling,
                ).probs
                for runner in (self.target, self.draft)
            )
            yield start, p, q

    def _survival(self, p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
        """[t] probability that the token that follows, having been emitted, was a draft.

        Exact for greedy; for sampled rules that of ``rrs``: it accepts x with
        min(p_x, b q_x), see ``verifiers.acceptance``.
        """
        at = tokens[:, None]
        if self.params.greedy:
            top = q.topk(min(SURVIVAL_CHILDREN, q.shape[-1]), dim=-1).indices
            return (top == at).any(-1).double()
        w, b = p.new_ones(len(p)), p.new_zeros(len(p))
        for _ in range(SURVIVAL_CHILDREN):
            b = b + w
            w = (p - b[:, None] * q).clamp_min(0).sum(-1)
        p_token, q_token = p.gather(1, at)[:, 0], q.gather(1, at)[:, 0]
        return torch.where(p_token > 0, (b * q_token / p_token).clamp(max=1.0), 0.0).double()

    def _rates(
        self, rule: str, p: Tensor, q: Tensor, width: int, rng: torch.Generator
    ) -> np.ndarray:
        """[t, B, B] acceptance of child j of b children at each position."""
        samples = self.settings.samples if rule_name(rule) == "rrs_wor" else None

        def rates(children: int) -> np.ndarray:
            found = acceptance(rule, p.double(), q.double(), children, samples=samples, rng=rng)
            values = found if isinstance(found, Tensor) else found.values
            return values.cpu().numpy()

        if rule_name(rule) in VECTOR_RULES:
            return np.tril(np.repeat(rates(width)[:, None, :], width, axis=1))
        table = np.zeros((len(p), width, width))
        for children in range(1, width + 1):
            table[:, children - 1, :children] = rates(children)
        return table


def depth_weights(survival: np.ndarray, num_depths: int) -> np.ndarray:
    """[t, D] probability of standing at depth d (the last: d or deeper) at each position."""
    weights = np.zeros((len(survival), num_depths))
    weights[0, 0] = 1.0
    for t, survives in enumerate(survival[:-1]):
        moved = weights[t] * survives
        weights[t + 1, 1:] = moved[:-1]
        weights[t + 1, -1] += moved[-1]
        weights[t + 1, 0] += weights[t].sum() - moved.sum()
    return weights


def _plain(visited: np.ndarray, accepted: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        "visited": visited.tolist(),
        "accepted": {rule: array.tolist() for rule, array in accepted.items()},
    }
