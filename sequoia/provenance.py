"""Where a number comes from: commit, versions, machine, and the command that made it."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import transformers

from sequoia.version import __version__

ROOT = Path(__file__).resolve().parent.parent


def collect(**what: Any) -> dict[str, Any]:
    """A JSON-ready record of this process, followed by ``what`` (device, dtype, seed, tree ...).

    ``commit`` is None for an installed release, and ends in ``+changes`` when tracked files of the
    checkout differ from it.
    """
    return {
        "commit": commit(),
        "versions": {
            "sequoia": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
        },
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "command": command(),
        **{name: _plain(value) for name, value in what.items()},
    }


def commit() -> str | None:
    """The commit of the checkout that this package is imported from."""
    if not (ROOT / ".git").exists():
        return None
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{head}+changes" if head and changed else head


def command() -> str:
    """The command line of this process, ready to be pasted into a shell."""
    program = Path(sys.argv[0]).name
    if program == "__main__.py":
        program = "python -m sequoia"
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])


def device_name(device: torch.device | str) -> str:
    """``cuda:0 (NVIDIA ...)`` or ``cpu (...)``, with the processor's name where it is known."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({_processor()})"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _plain(value: Any) -> Any:
    """Devices and dtypes as their names; JSON types as they are."""
    if isinstance(value, torch.device):
        return device_name(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value
