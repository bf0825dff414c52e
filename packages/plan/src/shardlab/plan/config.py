"""The JSON that users of DeepSpeed already have: one closed schema of the keys that are honoured.

A key outside the schema is an error with its full path and the nearest known key: a typing error that is silently
ignored switches off clipping or sharding without a word. Keys of parts that are not built yet are refused the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from shardlab.plan.batch import BatchTriple, solve_batch
from shardlab.plan.jsonfile import read_object
from shardlab.plan.optimizer import OPTIMIZERS
from shardlab.plan.plan import Precision

_OTHERS = """
amp autotuning activation_checkpointing aio checkpoint comms_logger communication_data_type compression_training
csv_monitor curriculum_learning data_efficiency dump_state elasticity flops_profiler gradient_predivide_factor
memory_breakdown prescale_gradients sparse_attention sparse_gradients steps_per_print tensorboard torch_autocast
wall_clock_breakdown wandb zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
allgather_bucket_size allgather_partitions contiguous_gradients ignore_unused_parameters offload_optimizer
offload_param overlap_comm reduce_bucket_size reduce_scatter round_robin_gradients
stage3_gather_16bit_weights_on_model_save stage3_max_live_parameters stage3_max_reuse_distance
stage3_param_persistence_threshold stage3_prefetch_bucket_size sub_group_size zero_hpz_partition_size
zero_quantized_gradients zero_quantized_weights
"""
NOT_READ_YET: Mapping[str, str] = {
    **dict.fromkeys(_OTHERS.split(), ""),
    "fp16": ". Loss scaling is not built; use bf16",
}
"""Keys that users of DeepSpeed know, with what to do instead; refused like any key that would have no effect."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OptimizerParams(_Section):
    """Arguments of the optimizer."""

    lr: PositiveFloat = 1e-3
    betas: tuple[float, float] = Field(default=(0.9, 0.999), strict=False)
    eps: PositiveFloat = 1e-8
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)


class OptimizerConfig(_Section):
    """Which optimizer, with what arguments."""

    type: Literal["AdamW", "Adam", "SGD"] = "AdamW"
    params: OptimizerParams = OptimizerParams()

    @property
    def name(self) -> str:
        """Name of the optimizer in a plan."""
        name = "sgd-momentum" if self.type == "SGD" and self.params.momentum else self.type.lower()
        assert name in OPTIMIZERS
        return name


class SchedulerParams(_Section):
    """Arguments of the learning-rate schedule."""

    total_num_steps: PositiveInt
    warmup_min_ratio: float = Field(default=0.0, ge=0, le=1)
    warmup_num_steps: int = Field(default=1000, ge=0)
    cos_min_ratio: float = Field(default=1e-4, ge=0, le=1)
    warmup_type: Literal["log", "linear"] = "log"


class SchedulerConfig(_Section):
    """Which learning-rate schedule, with what arguments."""

    type: Literal["WarmupCosineLR"]
    params: SchedulerParams


class Bf16Config(_Section):
    """bf16 weights with fp32 master weights."""

    enabled: bool = False


class ZeroConfig(_Section):
    """What is sharded over data-parallel ranks."""

    stage: Literal[0, 1, 2, 3] = 0


class DataTypesConfig(_Section):
    """dtype of accumulated gradients."""

    grad_accum_dtype: Literal["fp32", "bf16"] | None = None


class Config(_Section):
    """A run's configuration, validated.

    Made by `read_config_file` or `parse_config`, whose errors name paths and nearest keys.
    """

    train_batch_size: PositiveInt | None = None
    train_micro_batch_size_per_gpu: PositiveInt | None = None
    gradient_accumulation_steps: PositiveInt | None = None
    gradient_clipping: float = Field(default=0.0, ge=0)
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: SchedulerConfig | None = None
    bf16: Bf16Config = Bf16Config()
    zero_optimization: ZeroConfig = ZeroConfig()
    data_types: DataTypesConfig = DataTypesConfig()
    seed: int = Field(default=0, ge=0)

    @property
    def precision(self) -> Precision:
        """Which dtype holds what: fp32, or bf16 reduced and accumulated in `data_types.grad_accum_dtype`."""
        if not self.bf16.enabled:
            return Precision()
        kept = self.data_types.grad_accum_dtype or "bf16"
        return Precision("bf16", kept, kept, "fp32")

    def batch(self, dp: int) -> BatchTriple:
        """Solve the batch-size triple for a number of data-parallel ranks; raises as `solve_batch`."""
        return solve_batch(
            self.train_batch_size, self.train_micro_batch_size_per_gpu, self.gradient_accumulation_steps, dp
        )


def parse_config(data: Mapping[str, Any], name: str = "config") -> Config:
    """Validate a configuration.

    Args:
        data: The parsed JSON.
        name: What to call it in messages.

    Raises:
        ValueError: Names every faulty key with its full path, what was wrong, and the nearest known key or value.
    """
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _problems(error))
        raise ValueError(f"{name}: {error.error_count()} problem(s)\n{problems}") from None
    if config.data_types.grad_accum_dtype == "bf16" and not config.bf16.enabled:
        raise ValueError(f"{name}: data_types.grad_accum_dtype is 'bf16' but bf16.enabled is false; want 'fp32'")
    return config


def read_config_file(path: Path) -> Config:
    """Read and validate a configuration file.

    Raises:
        ValueError: If it is not JSON, or as `parse_config`.
        OSError: If it cannot be read.
    """
    return parse_config(read_object(path), str(path))


def _problems(error: ValidationError) -> Iterator[str]:
    for item in error.errors():
        place = [str(part) for part in item["loc"]]
        path = ".".join(place)
        if item["type"] == "extra_forbidden":
            if place[-1] in NOT_READ_YET:
                yield f"{path}: a key of DeepSpeed that is not read yet; remove it{NOT_READ_YET[place[-1]]}"
                continue
            near = difflib.get_close_matches(place[-1], _keys(place[:-1]), n=1)
            known = f"did you mean {'.'.join([*place[:-1], near[0]])!r}?" if near else _known(place[:-1])
            yield f"{path}: unknown key; {known}"
        else:
            yield f"{path}: {item['msg']}, got {item.get('input')!r}"


def _keys(place: list[str]) -> list[str]:
    model: Any = Config
    for part in place:
        annotation = model.model_fields[part].annotation
        inner = [kind for kind in getattr(annotation, "__args__", (annotation,)) if hasattr(kind, "model_fields")]
        model = inner[0]
    return list(model.model_fields)


def _known(place: list[str]) -> str:
    where = f"keys of {'.'.join(place)}" if place else "keys"
    return f"not honoured here; {where}: {' '.join(_keys(place))}"
