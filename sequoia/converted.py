"""The embedded target as a folder of safetensors, converted once per machine.

Reading a GGUF file takes transformers half a minute, most of it spent in Python on the vocabulary;
the same weights as safetensors load in a few seconds. Values are kept exactly (fp32), so nothing
but the waiting differs.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """``SEQUOIA_CACHE``, else ``sequoia-spec`` in the user's cache folder."""
    given = os.environ.get("SEQUOIA_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(given or os.path.join(base, "sequoia-spec"))


def converted(folder: str, gguf_file: str) -> tuple[str, str | None]:
    """(folder, None) of the converted model, made now if need be.

    Where it cannot be written (no space, read-only home) the GGUF file itself: (folder, gguf_file).
    """
    source = Path(folder, gguf_file)
    size = source.stat().st_size
    made = cache_folder() / f"{source.stem}-{size}"
    if made.is_dir():
        return str(made), None
    logger.warning("converting %s once, to %s (0.5 GB)", gguf_file, made)
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            written = Path(scratch, "model")
            _convert(folder, gguf_file, written)
            os.replace(written, made)  # all or nothing: a killed conversion leaves no half model
    except OSError as error:
        if made.is_dir():  # another process was faster
            return str(made), None
        logger.warning("it cannot be kept (%s): reading the GGUF file instead", error)
        return folder, gguf_file
    return str(made), None


def _convert(folder: str, gguf_file: str, written: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf_file, dtype=torch.float32)
    if shutil.disk_usage(written.parent).free < 2 * 4 * model.num_parameters():
        raise OSError("too little free space")
    # Not model.save_pretrained: transformers 5 refuses, taking dequantised weights for quantised.
    tied = set(model._tied_weights_keys or ()) if model.config.tie_word_embeddings else set()
    weights = {name: value for name, value in model.state_dict().items() if name not in tied}
    written.mkdir()
    save_file(weights, written / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file).save_pretrained(written)
    model.generation_config.save_pretrained(written)
    config = model.config.to_dict()
    for name in ("quantization_config", "torch_dtype"):
        config.pop(name, None)
    # dtype="auto" should mean what it means for the GGUF file: 4-bit weights need no fp32 on CUDA
    config |= {"dtype": "bfloat16", "architectures": [type(model).__name__]}
    (written / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
