"""Describe a training run as values that runtime and simulator both read; imports no torch."""

from shardlab.plan.action import Action, Op, lane_of
from shardlab.plan.blocks import Batch
from shardlab.plan.dtypes import ITEMSIZE, dtype_name, is_floating, itemsize
from shardlab.plan.families import from_dict, gpt, llama, mlp
from shardlab.plan.flat import FlatGroup, flat_groups
from shardlab.plan.footprint import CATEGORIES, Footprint, footprint
from shardlab.plan.huggingface import from_hf, read_config
from shardlab.plan.layout import Layout, ParamSpec, Piece
from shardlab.plan.ledger import COMM_OPS, Ledger, Span, Total
from shardlab.plan.mesh import MeshShape
from shardlab.plan.model import LayerSpec, ModelSpec, SavedTensor, UnitSpec, count
from shardlab.plan.needs import StepShape, needs
from shardlab.plan.optimizer import OPTIMIZERS, OptimizerSpec, optimizer_spec
from shardlab.plan.placement import ParamInfo, Partial, Placement, Replicate, Shard, local_shape
from shardlab.plan.plan import Plan, Precision
from shardlab.plan.presets import PRESETS, load_model, preset
from shardlab.plan.program import Program, compile_plan, parse_program
from shardlab.plan.state import Holding, held_bytes, holdings, state_bytes
from shardlab.plan.verify import verify
from shardlab.plan.work import Call, calls, flops, model_flops, step_bytes, wire_bytes

__all__ = [
    "Action",
    "Batch",
    "CATEGORIES",
    "COMM_OPS",
    "Call",
    "FlatGroup",
    "Footprint",
    "Holding",
    "ITEMSIZE",
    "LayerSpec",
    "Layout",
    "Ledger",
    "MeshShape",
    "ModelSpec",
    "OPTIMIZERS",
    "Op",
    "OptimizerSpec",
    "PRESETS",
    "ParamInfo",
    "ParamSpec",
    "Partial",
    "Piece",
    "Placement",
    "Plan",
    "Precision",
    "Program",
    "Replicate",
    "SavedTensor",
    "Shard",
    "Span",
    "StepShape",
    "Total",
    "UnitSpec",
    "calls",
    "compile_plan",
    "count",
    "dtype_name",
    "flat_groups",
    "flops",
    "footprint",
    "from_dict",
    "from_hf",
    "gpt",
    "held_bytes",
    "holdings",
    "is_floating",
    "itemsize",
    "lane_of",
    "llama",
    "load_model",
    "local_shape",
    "mlp",
    "model_flops",
    "needs",
    "optimizer_spec",
    "parse_program",
    "preset",
    "read_config",
    "state_bytes",
    "step_bytes",
    "verify",
    "wire_bytes",
]
