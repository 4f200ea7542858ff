"""One forward pass over a token tree: a lean Llama-family model on its own KV cache."""

from model_fi.attention import AttentionBackend, MatmulAttention, SdpaAttention
from model_fi.families import check_config
from model_fi.kv_cache import KVCache
from model_fi.llama import LlamaForCausalLM_FI, LlamaForCausalLM_TG
from model_fi.loading import load_config, load_model, prepare_model
from model_fi.masks import causal_mask, tree_mask
from model_fi.memory import predict_memory
from model_fi.runner import EagerRunner

__all__ = [
    "AttentionBackend",
    "EagerRunner",
    "KVCache",
    "LlamaForCausalLM_FI",
    "LlamaForCausalLM_TG",
    "MatmulAttention",
    "SdpaAttention",
    "causal_mask",
    "check_config",
    "load_config",
    "load_model",
    "predict_memory",
    "prepare_model",
    "tree_mask",
]
