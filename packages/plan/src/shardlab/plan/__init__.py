"""Describe a training run as values that runtime and simulator both read; imports no torch."""

from shardlab.plan.blocks import Batch
from shardlab.plan.dtypes import ITEMSIZE, dtype_name, is_floating, itemsize
from shardlab.plan.families import from_dict, gpt, llama, mlp
from shardlab.plan.huggingface import from_hf, read_config
from shardlab.plan.layout import Layout, ParamSpec, Piece
from shardlab.plan.ledger import COMM_OPS, Ledger, Span, Total
from shardlab.plan.mesh import MeshShape
from shardlab.plan.model import LayerSpec, ModelSpec, SavedTensor, UnitSpec, count
from shardlab.plan.placement import ParamInfo, Partial, Placement, Replicate, Shard, local_shape
from shardlab.plan.presets import PRESETS, load_model, preset

__all__ = [
    "Batch",
    "COMM_OPS",
    "ITEMSIZE",
    "LayerSpec",
    "Layout",
    "Ledger",
    "MeshShape",
    "ModelSpec",
    "PRESETS",
    "ParamInfo",
    "ParamSpec",
    "Partial",
    "Piece",
    "Placement",
    "Replicate",
    "SavedTensor",
    "Shard",
    "Span",
    "Total",
    "UnitSpec",
    "count",
    "dtype_name",
    "from_dict",
    "from_hf",
    "gpt",
    "is_floating",
    "itemsize",
    "llama",
    "load_model",
    "local_shape",
    "mlp",
    "preset",
    "read_config",
]
