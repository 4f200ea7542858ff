"""What drawing and verifying cost per step, next to a naive peer and to a target pass.

    python -m experiments.bench_verifiers                       # all verifiers, 64 nodes, V = 49152
    python -m experiments.bench_verifiers --size 8 --size 64 --size 512 --vocab 32000 --vocab 128000
    python -m experiments.bench_verifiers --target embedded     # with the target pass as yardstick
    python -m experiments.bench_verifiers --device cuda --graph

A step here is: filling the uniforms; for each level of a complete binary tree, temperature, filters
and softmax of the draft's rows and the draw of their children; then the walk over the target's
rows (filters and softmax where the walk needs them) down to the path and the bonus. Both models are
replaced by tables of logits, one row per node, shaped like language (a Zipf law, a noisy draft).
Times are medians: wall-clock, and ``cpu``, the processor time of all threads of this process, which
a busy machine disturbs less. ``read`` is one pass over the draft's rows: they have to be read once
to be drawn from, so nothing can be faster. The last line is JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import click
import torch

import verifiers
from experiments.verifier_peer import RULES as PEER_RULES
from experiments.verifier_peer import Peer
from experiments.verifier_setting import Setting, complete_binary
from model_fi import EagerRunner, tree_mask
from sequoia.pair import load_pair
from sequoia.provenance import collect, device_name
from tree_builder.topology import TreeTopology
from verifiers.probs import Sampling

NAMES = tuple(name for name in verifiers.NAMES if name != "greedy")
PREFIX = 128  # tokens before the tree in the yardstick's target pass


@dataclass(frozen=True)
class Timing:
    """How long one configuration took. Microseconds are medians over ``repeats`` steps."""

    verifier: str
    size: int
    vocab: int
    step_us: float
    cpu_us: float
    draw_us: float
    verify_us: float
    tokens_per_step: float
    repeats: int


class Sample(NamedTuple):
    """Seconds of one step, and the tokens it emitted."""

    draw: float
    walk: float
    cpu: float
    emitted: int


class Clock:
    """Wall-clock seconds, after the device has finished what was asked of it."""

    def __init__(self, device: torch.device) -> None:
        self.synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def __call__(self) -> float:
        self.synchronize()
        return time.perf_counter()


def repeat(step: Callable[[], tuple[float, float, int]], most: int, seconds: float) -> list[Sample]:
    """Samples of up to ``most`` steps, at least 3, after one to warm up."""
    step()
    samples: list[Sample] = []
    end = time.perf_counter() + seconds
    while len(samples) < most and (len(samples) < 3 or time.perf_counter() < end):
        start = time.process_time()
        draw, walk, emitted = step()
        samples.append(Sample(draw, walk, time.process_time() - start, emitted))
    return samples


def measure(setting: Setting, name: str, most: int, seconds: float) -> Timing:
    """Time a verifier of the package, eagerly."""
    verifier, clock = verifiers.make(name), Clock(setting.device)

    def step() -> tuple[float, float, int]:
        start = clock()
        setting.fill()
        grown = setting.grow(verifier)
        drawn = clock()
        verdict = setting.verify(verifier, grown)
        return drawn - start, clock() - drawn, 1 + int(verdict.num_accepted)

    return _timing(name, setting, repeat(step, most, seconds))


def measure_graph(setting: Setting, name: str, most: int, seconds: float) -> Timing:
    """Time the same step as one captured CUDA graph (drawing and verifying are one number)."""
    verifier, clock = verifiers.make(name), Clock(setting.device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            setting.verify(verifier, setting.grow(verifier))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verdict = setting.verify(verifier, setting.grow(verifier))

    def step() -> tuple[float, float, int]:
        start = clock()
        setting.fill()
        graph.replay()
        return 0.0, clock() - start, 1 + int(verdict.num_accepted)

    return _timing(f"{name} (graph)", setting, repeat(step, most, seconds))


def measure_peer(setting: Setting, name: str, most: int, seconds: float) -> Timing:
    """Time the naive loop of the same rule."""
    clock, temperature = Clock(setting.device), float(setting.sampling.temperature)
    peer = Peer(setting.topology, replacement=name == "rrs", temperature=temperature)

    def step() -> tuple[float, float, int]:
        start = clock()
        q, tokens = peer.draw(setting.draft_logits, setting.generator)
        drawn = clock()
        found = peer.verify(setting.target_logits, q, tokens, setting.generator)
        return drawn - start, clock() - drawn, len(found.path)

    return _timing(f"{name} (peer loop)", setting, repeat(step, most, seconds))


def _timing(name: str, setting: Setting, samples: list[Sample]) -> Timing:
    return Timing(
        verifier=name,
        size=setting.topology.size,
        vocab=setting.vocab,
        step_us=micros(sample.draw + sample.walk for sample in samples),
        cpu_us=micros(sample.cpu for sample in samples),
        draw_us=micros(sample.draw for sample in samples),
        verify_us=micros(sample.walk for sample in samples),
        tokens_per_step=round(statistics.fmean(sample.emitted for sample in samples), 3),
        repeats=len(samples),
    )


def micros(seconds: Iterable[float]) -> float:
    """Median in microseconds."""
    return round(statistics.median(seconds) * 1e6, 1)


def read_once(setting: Setting, most: int, seconds: float) -> float:
    """Microseconds of one pass over the draft's rows."""
    clock = Clock(setting.device)

    def step() -> tuple[float, float, int]:
        start = clock()
        setting.draft_logits.amax(-1)
        return clock() - start, 0.0, 0

    return micros(sample.draw for sample in repeat(step, most, seconds))


def target_pass(
    model: Any, topology: TreeTopology, most: int, seconds: float
) -> tuple[float, float]:
    """Microseconds, wall-clock and processor, of one pass of the target over all nodes, after a
    prefix of 128 tokens."""
    bucket = -(-(PREFIX + topology.size) // 64) * 64
    runner = EagerRunner(model, bucket)
    device, clock = runner.device, Clock(runner.device)
    tree = topology.tensors(device)
    n = torch.full((), PREFIX + 1, device=device)
    tokens = torch.arange(1, PREFIX + topology.size + 1, device=device) % runner.vocab_size
    runner.prefill(tokens[:PREFIX])
    nodes = torch.arange(topology.size, device=device)
    mask = tree_mask(n, tree.mask, bucket)

    def step() -> tuple[float, float, int]:
        start = clock()
        runner.forward(tokens[PREFIX:], n - 1 + tree.depth, n - 1 + nodes, mask)
        return clock() - start, 0.0, 0

    samples = repeat(step, most, seconds)
    return micros(sample.draw for sample in samples), micros(sample.cpu for sample in samples)


def row_text(timing: Timing, floor: float, yardstick: tuple[float, float] | None) -> str:
    """One line of the table."""
    share = ""
    if yardstick is not None:
        wall, cpu = timing.step_us / yardstick[0], timing.cpu_us / yardstick[1]
        share = f"{wall:10.2%} {cpu:.2%}"
    return (
        f"{timing.verifier:<22}{timing.size:>6}{timing.vocab:>8}{timing.step_us:>12.0f}"
        f"{timing.cpu_us:>12.0f}{timing.draw_us:>12.0f}{timing.verify_us:>12.0f}{floor:>10.0f}"
        f"{timing.tokens_per_step:>9.2f}{share}"
    )


HEADER = (
    f"{'verifier':<22}{'nodes':>6}{'V':>8}{'step us':>12}{'cpu us':>12}{'draw us':>12}"
    f"{'verify us':>12}{'read us':>10}{'tokens':>9}"
)


@click.command(context_settings={"show_default": True})
@click.option("--verifier", "names", multiple=True, help="May be repeated.  [default: all]")
@click.option("--size", "sizes", multiple=True, type=int, default=(64,), help="Nodes, repeatable.")
@click.option("--vocab", "vocabs", multiple=True, type=int, default=(49152,), help="Repeatable.")
@click.option("--temperature", default=1.0, help="Above 0.")
@click.option("--top-k", default=0, help="0 = off.")
@click.option("--top-p", default=1.0, help="1 = off.")
@click.option("--device", default="cpu", help="cpu or cuda.")
@click.option("--threads", type=int, help="CPU threads of torch.  [default: torch's choice]")
@click.option("--graph", is_flag=True, help="On CUDA: also the step as one captured graph.")
@click.option("--target", help="Also time this target's pass ('embedded', a Hub id, a folder).")
@click.option("--repeats", default=30, help="Steps per configuration, at most.")
@click.option("--seconds", default=3.0, help="Time per configuration, at most (but 3 steps).")
@click.option("--seed", default=0, help="Of the logits and of all draws.")
@click.option("--quick", is_flag=True, help="Every verifier once on tiny sizes, in seconds.")
def main(**options: Any) -> None:
    """Time drawing and verifying by rule, walker, tree size and vocabulary."""
    if options["quick"]:
        options.update(sizes=(8,), vocabs=(1000,), repeats=3, seconds=0.1)
    names = options["names"] or NAMES
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"{name!r}; choose from {', '.join(NAMES)}")
    if options["temperature"] <= 0:
        raise click.BadParameter("the temperature must be above 0")
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    device = torch.device(options["device"])
    if options["graph"] and device.type != "cuda":
        raise click.BadParameter("--graph needs --device cuda")
    click.echo(json.dumps(run(names, device, options)))


@torch.inference_mode()
def run(names: Sequence[str], device: torch.device, options: dict[str, Any]) -> dict[str, Any]:
    """Measure everything, print the table, return the record."""
    limits = options["repeats"], options["seconds"]
    top_p = options["top_p"]
    sampling = Sampling(
        torch.tensor(options["temperature"], device=device),
        torch.tensor(top_p, device=device) if top_p < 1 else None,
        options["top_k"],
    )
    model = None
    if options["target"]:
        model = load_pair(options["target"], None, device=device, max_length=2048).target
    results: list[dict[str, Any]] = []
    passes: dict[int, tuple[float, float]] = {}
    click.echo(HEADER + ("   of target pass (wall, cpu)" if model is not None else ""))
    for size in options["sizes"]:
        topology = complete_binary(size)
        if model is not None:
            passes[size] = target_pass(model, topology, *limits)
        for vocab in options["vocabs"]:
            setting = Setting(topology, vocab, sampling, device, options["seed"])
            floor = read_once(setting, *limits)
            same = model is not None and model.dims.vocab == vocab
            yardstick = passes[size] if same else None
            for timing in _timings(setting, names, options["graph"], limits):
                click.echo(row_text(timing, floor, yardstick))
                results.append({**asdict(timing), "read_us": floor, "target_pass_us": yardstick})
    return collect(
        device=device_name(device), tree="complete binary", results=results, target_pass_us=passes,
        **{name: options[name] for name in ("temperature", "top_k", "top_p", "target", "seed")},
    )  # fmt: skip


def _timings(setting: Setting, names: Sequence[str], graph: bool, limits: tuple[int, float]) -> Any:
    filtered = setting.sampling.top_k > 0 or setting.sampling.top_p is not None
    for name in names:
        yield measure(setting, name, *limits)
        if graph:
            yield measure_graph(setting, name, *limits)
        if name in PEER_RULES and not filtered:  # the peer knows no filters
            yield measure_peer(setting, name, *limits)


if __name__ == "__main__":
    main()
