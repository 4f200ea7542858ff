"""Make a draft for any Llama-family target: text, top logits, a small model trained on them.

    python -m experiments.distill --target HuggingFaceTB/SmolLM2-360M-Instruct --out my-draft
    accelerate launch -m experiments.distill --target FOLDER --out my-draft --prompts prompts.txt

Four stages, each kept in the work folder and resumed after a kill: text, targets, train, export.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from experiments.distillation.draft import DraftShape
from experiments.distillation.stages import STAGES, TextPlan, distil, make_accelerator
from experiments.distillation.training import TrainingPlan

EPILOG = """\b
Examples:
  # the shipped draft, from text that is there
  python -m experiments.distill --target embedded --text distill_text.npz --out draft
      --layers 2 --head-tokens 4096 --steps 4000
  # a narrow draft with its own embeddings: an ordinary model for any program
  python -m experiments.distill --target FOLDER --out draft --width 256 --own-embeddings
  # several GPUs
  accelerate launch -m experiments.distill --target FOLDER --out draft
"""


@click.command(epilog=EPILOG, context_settings={"show_default": True})
@click.option("--target", required=True, help="Hub id, folder, GGUF file, or 'embedded'.")
@click.option("--out", required=True, type=Path, help="Folder the draft is written to.")
@click.option("--work", type=Path, help="Folder for resuming.  [default: OUT with .work]")
@click.option("--until", type=click.Choice(STAGES), default="export", help="Last stage to run.")
@click.option(
    "--text",
    type=Path,
    multiple=True,
    help="Text to use (repeatable): .npz (tokens, lengths, ...), a folder of them, or plain text.",
)
@click.option("--prompts", type=Path, help="Prompts to answer, one a line.  [default: own]")
@click.option("--samples", default=8, help="Answers to each prompt.")
@click.option("--max-new-tokens", default=256, help="Tokens of an answer, at most.")
@click.option("--window", default=256, help="Tokens of a sequence cut from plain text.")
@click.option("--batch-size", default=16, help="Sequences per pass of the target.")
@click.option("--top", default=64, help="Target tokens stored per position.")
@click.option("--scored", type=int, help="Score only N sequences; the rest teach their tokens.")
@click.option("--held-out", default=0.05, help="Fraction of sequences measured on, not trained.")
@click.option("--layers", default=2, help="Layers of the draft.")
@click.option("--width", type=int, help="Width of the draft.  [default: the target's]")
@click.option(
    "--share-embeddings/--own-embeddings",
    default=True,
    help="Use the target's embeddings, frozen and not shipped, or train own ones.",
)
@click.option("--head-tokens", default=0, help="Score only the N most used tokens (0: all).")
@click.option("--init", type=Path, help="Folder of a draft of this shape to train further.")
@click.option(
    "--loss",
    type=click.Choice(["kl", "tv", "kl+tv"]),
    default="kl",
    help="kl+tv: total variation over the last third.",
)
@click.option("--steps", default=4000, help="Training steps.")
@click.option("--batch-tokens", default=1100, help="Tokens of a training batch, per process.")
@click.option("--lr", default=1e-3, help="Peak learning rate.")
@click.option("--warmup", default=100, help="Warm-up steps.")
@click.option("--save-every", default=200, help="Steps between checkpoints.")
@click.option("--evaluate-every", default=200, help="Steps between held-out measurements.")
@click.option("--seed", default=0, help="Seed of text, shuffling and batches.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16"]), default="auto")
def main(target, out, work, init, until, text, prompts, loss, lr, device, precision, **options):
    """Distil a draft model for TARGET."""
    text_names = ("samples", "max_new_tokens", "window", "batch_size", "top", "seed")
    text_names += ("scored", "held_out")
    shape_names = ("layers", "width", "share_embeddings", "head_tokens")
    plan_names = ("steps", "batch_tokens", "warmup", "save_every", "evaluate_every", "seed")
    tv_from = {"kl": 1.0, "tv": 0.0, "kl+tv": 2 / 3}[loss]
    try:
        text_plan = TextPlan(texts=text, prompts=prompts, **{n: options[n] for n in text_names})
        shape = DraftShape(**{n: options[n] for n in shape_names})
        plan = TrainingPlan(
            learning_rate=lr, tv_from=tv_from, **{n: options[n] for n in plan_names}
        )
        accelerator = make_accelerator(device, precision)
        command = shlex.join(["python", "-m", "experiments.distill", *sys.argv[1:]])
        work = work or out.with_name(out.name + ".work")
        quality = distil(
            target,
            out,
            work,
            text_plan,
            shape,
            plan,
            accelerator,
            init=init,
            until=until,
            command=command,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        click.echo(f"stopped; the same command goes on from {work}", err=True)
        sys.exit(130)
    if quality is not None and accelerator.is_main_process:
        click.echo(
            f"held out: agreement {quality.agreement:.3f}, overlap {quality.overlap:.3f} "
            f"({quality.positions} positions)"
        )


if __name__ == "__main__":
    main()
