"""Describe a training run as values that runtime and simulator both read; imports no torch."""

from typing import TYPE_CHECKING

from shardlab.plan.action import Action, Op, lane_of
from shardlab.plan.batch import BatchTriple, solve_batch
from shardlab.plan.blocks import Batch
from shardlab.plan.dtypes import ITEMSIZE, dtype_name, is_floating, itemsize
from shardlab.plan.families import from_dict, gpt, llama, mlp
from shardlab.plan.flat import FlatGroup, flat_groups
from shardlab.plan.footprint import CATEGORIES, Footprint, footprint
from shardlab.plan.huggingface import from_hf, read_config
from shardlab.plan.layout import Layout, ParamSpec, Piece
from shardlab.plan.ledger import COMM_OPS, Ledger, Span, Total
from shardlab.plan.machine import Figure, Link, Machine
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

if TYPE_CHECKING:
    from shardlab.plan.config import Config, parse_config, read_config_file

__all__ = [
    "Action",
    "Batch",
    "BatchTriple",
    "CATEGORIES",
    "COMM_OPS",
    "Call",
    "Config",
    "Figure",
    "FlatGroup",
    "Footprint",
    "Holding",
    "ITEMSIZE",
    "LayerSpec",
    "Layout",
    "Ledger",
    "Link",
    "Machine",
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
    "parse_config",
    "parse_program",
    "preset",
    "read_config",
    "read_config_file",
    "solve_batch",
    "state_bytes",
    "step_bytes",
    "verify",
    "wire_bytes",
]


def __getattr__(name: str) -> object:
    """Import the configuration schema when it is first asked for: pydantic costs more than all else here."""
    if name in ("Config", "parse_config", "read_config_file"):
        from shardlab.plan import config

        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
