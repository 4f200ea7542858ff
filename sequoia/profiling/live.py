"""Live acceptance: counted from outside while text is generated, whatever the verifier is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sequoia.config import SamplingParams
from sequoia.decoder import SpeculativeDecoder
from sequoia.outputs import StepRecord
from sequoia.profiling.journal import Journal
from sequoia.profiling.ratios import table_of, vector_table_of
from sequoia.profiling.static import VECTOR_RULES
from sequoia.profiling.texts import Progress, Text, quiet
from tree_builder import AcceptanceTable


class LiveCounter:
    """An observer that counts which child follows each node of the accepted paths.

    The count over the visits estimates P(child j is on the accepted path | the node is on it and
    has b children). For token-level rules that is the acceptance of the child, for traversal
    forms it is what the same product along a path needs, but it depends on the tree.
    Depths from ``num_depths`` on are counted with the last one. Nodes with more than
    ``max_children`` children are a ValueError.
    """

    def __init__(self, max_children: int, num_depths: int) -> None:
        self.visited = np.zeros((num_depths, max_children))  # [D, B]
        self.accepted = np.zeros((num_depths, max_children, max_children))  # [D, B, B]

    def __call__(self, record: StepRecord) -> None:
        deepest, most = self.visited.shape[0] - 1, self.visited.shape[1]
        rows = record.tree.row_of.tolist()
        for place, node in enumerate(record.path):
            if rows[node] < 0:
                continue
            children = [child for child in record.tree.children[rows[node]].tolist() if child]
            if len(children) > most:
                raise ValueError(f"a node has {len(children)} children, counted are up to {most}")
            if not children:
                continue  # every child was pruned
            depth, b = min(place, deepest), len(children) - 1
            self.visited[depth, b] += 1
            if place + 1 < len(record.path):
                self.accepted[depth, b, children.index(record.path[place + 1])] += 1


def profile_live(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Text],
    params: SamplingParams,
    num_depths: int,
    journal: Journal,
    progress: Progress = quiet,
    provenance: Mapping[str, Any] | None = None,
) -> AcceptanceTable:
    """The acceptance table of a decoder's own verifier on its own tree.

    For rules whose rates do not depend on the number of children (and their traversal forms,
    where that is an approximation) the table is one vector. For the others the rows of numbers
    of children that the tree does not have are 0: measure on a tree that has them.
    """
    most = decoder.tree.max_children
    if most < 1:
        raise ValueError("live acceptance needs a tree that drafts: this one is a single node")
    for prompt in progress(prompts):
        key = f"live {prompt.key}"
        if key not in journal:
            counter = LiveCounter(most, num_depths)
            output = decoder.generate(prompt.ids, params, observer=counter)
            counts = {"visited": counter.visited, "accepted": counter.accepted}
            plain = {name: array.tolist() for name, array in counts.items()}
            journal.add(key, {**plain, "tokens": len(output.token_ids), "steps": output.num_steps})
    records = [journal[f"live {prompt.key}"] for prompt in prompts]
    tokens = sum(record["tokens"] for record in records)
    about = {
        **(provenance or {}),
        "rule": "greedy" if params.greedy else decoder.verifier.name,
        "tree": decoder.tree_name,
        "how": "live",
        "texts": len(records),
        "tokens_per_step": tokens / max(1, sum(record["steps"] for record in records)),
    }
    vector = about["rule"].partition("/")[0] in VECTOR_RULES
    return (vector_table_of if vector else table_of)(
        [np.array(record["accepted"]) for record in records],
        [np.array(record["visited"]) for record in records],
        about,
    )
