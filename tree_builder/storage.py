"""Files as everything in this package stores them: readable JSON, and safely loaded `.pt`."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FilePath = str | os.PathLike[str]


def read_json(path: FilePath) -> dict[str, Any]:
    """The JSON object in a file; ValueError when it is not one."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data


def write_json(data: Mapping[str, Any], path: FilePath) -> None:
    """One line per key: long arrays stay on one line and small changes make small diffs."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read_pt(path: FilePath) -> Any:
    """What a `.pt` file holds: tensors and plain containers only, moved to the CPU.

    ValueError for anything else (a pickle can run code when it is loaded, so it is not).
    """
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: refused, not a .pt file of tensors and plain containers ({reason})"
        ) from None
