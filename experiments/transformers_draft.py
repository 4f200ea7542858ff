"""Our draft as a model of transformers: assisted generation can then run with the same one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from model_fi import LlamaForCausalLM_FI


class ReducedHead(nn.Module):
    """A head that scores some token ids, and gives -inf to all others."""

    def __init__(self, weight: Tensor, token_ids: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.token_ids, self.vocab_size = token_ids, vocab_size

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., vocab]."""
        scores = nn.functional.linear(hidden, self.weight)
        whole = scores.new_full((*scores.shape[:-1], self.vocab_size), -torch.inf)
        whole[..., self.token_ids] = scores
        return whole


def as_transformers(draft: LlamaForCausalLM_FI) -> Any:
    """The same weights in transformers' own class, sharing memory where it can."""
    model = LlamaForCausalLM(draft.config).to(draft.compute_dtype)
    state = {
        name: value
        for name, value in draft.state_dict().items()
        if name.startswith(("model.layers.", "model.norm."))
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"model.embed_tokens.weight", "lm_head.weight"}, missing
    model.model.embed_tokens.weight = draft.model.embed_tokens.weight
    ids = getattr(draft, "head_token_ids", None)
    if ids is None:
        model.lm_head.weight = draft.lm_head.weight
    else:
        model.lm_head = ReducedHead(draft.lm_head.weight, ids, draft.dims.vocab)
    return model.eval()
