"""What is written beside the weights: a model card and a plot of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags: [speculative-decoding, draft-model]
---

# Draft model for {target}

A small causal model, trained to guess what {target} says next. It is made for speculative decoding
with this target and says little of use on its own.

| | |
|---|---|
| layers | {layers}, initialised from the target's layers {target_layers} (counted from 0) |
| width | {width} |
| embeddings | {embeddings} |
| head | {head} |
| weights | {megabytes:.1f} MB, {dtype} |
| text | {text} |
| training | {training} |
| held out | {held_out} sequences, {positions} answer positions |
| agreement with the target's argmax | {agreement:.3f} |
| overlap sum(min(p, q)) at temperature 1 | {overlap:.3f} |

Agreement is the acceptance of a first child in greedy decoding, overlap that of one drawn at
temperature 1 (a lower bound: of p, only the {top} most probable tokens are counted).

Loading: {loading}

Made by `experiments/distill.py`:

```
{command}
```
"""


def describe_loading(config: Any) -> str:
    if config.shares_target_embeddings or config.reduced_head_size:
        return (
            "`sequoia.load_pair(target, this_folder)`. Other programs cannot load this folder: "
            "`config.json` declares "
            + " and ".join(
                ["shared embeddings"] * bool(config.shares_target_embeddings)
                + ["a reduced head"] * bool(config.reduced_head_size)
            )
            + ". The tokenizer is the target's."
        )
    return "any program that loads Hugging Face models. The tokenizer is the target's."


def write_card(folder: Path, config: Any, facts: dict[str, Any]) -> None:
    """Write ``README.md``; ``facts`` are the fields of the card that the config does not know."""
    shared = config.shares_target_embeddings
    if config.reduced_head_size:
        head = f"own, trained, over the {config.reduced_head_size} most frequent tokens"
    else:
        head = "the target's, frozen" if shared else "tied to the embeddings"
    text = CARD.format(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        embeddings="the target's, frozen, not in this folder" if shared else "own, trained",
        head=head,
        loading=describe_loading(config),
        **facts,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def plot_history(history: list[dict[str, float]], path: Path) -> bool:
    """Loss, agreement and overlap over tokens; False (and no file) without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = [entry["tokens"] for entry in history]
    trained = [entry for entry in history if "train_loss" in entry]
    left.plot(
        [entry["tokens"] for entry in trained], [e["train_loss"] for e in trained], label="training"
    )
    left.plot(tokens[1:], [entry["loss"] for entry in history][1:], label="held out")
    left.set(xlabel="tokens trained on", ylabel="cross-entropy / nats", title="loss")
    for name in ("agreement", "overlap"):
        right.plot(tokens, [entry[name] for entry in history], label=name)
    right.set(xlabel="tokens trained on", ylim=(0, 1), title="held out")
    for axis in (left, right):
        axis.legend()
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return True
