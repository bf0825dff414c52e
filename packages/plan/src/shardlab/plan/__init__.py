"""Describe a training run as values that runtime and simulator both read; imports no torch."""

from shardlab.plan.dtypes import ITEMSIZE, dtype_name, is_floating, itemsize
from shardlab.plan.layout import Layout, ParamSpec, Piece
from shardlab.plan.ledger import COMM_OPS, Ledger, Span, Total
from shardlab.plan.mesh import MeshShape
from shardlab.plan.placement import ParamInfo, Partial, Placement, Replicate, Shard, local_shape

__all__ = [
    "COMM_OPS",
    "ITEMSIZE",
    "Layout",
    "Ledger",
    "MeshShape",
    "ParamInfo",
    "ParamSpec",
    "Partial",
    "Piece",
    "Placement",
    "Replicate",
    "Shard",
    "Span",
    "Total",
    "dtype_name",
    "is_floating",
    "itemsize",
    "local_shape",
]
