"""What a user asks for, turned into a plan, a machine and a number of nodes, or refused by name.

Flags of parts that are not built yet are accepted at their neutral value, so that scripts can name them already.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shardlab.plan import Machine, MeshShape, ModelSpec, Plan, Precision, load_model, solve_batch
from shardlab.sim.catalog import load_machine

if TYPE_CHECKING:
    from shardlab.plan import Config

DEFAULT_SEQ = 4096

T = TypeVar("T")


class RequestError(ValueError):
    """What was asked for is faulty; the message says what, where, and what would be right."""


@dataclass(frozen=True)
class Request:
    """A question to `zsim estimate`.

    Args:
        model: Preset name, `config.json`, count, or a model.
        gpus: Number of ranks.
        device: Machine name, file, or a machine.
        nodes: Nodes; as few as hold the ranks if not given.
        zero: ZeRO stage; 0 if neither this nor the configuration says.
        micro_batch: Samples per rank and backward pass.
        global_batch: Samples per step over all ranks.
        seq: Tokens per sample; the model's longest, at most 4,096, if not given.
        recompute: none or full.
        precision: fp32, bf16 or fp16; if neither this nor the configuration says, bf16, or fp16
            on a device without units for bf16.
        optimizer: Name; adamw if neither this nor the configuration says.
        config: A configuration file.
    """

    model: str | ModelSpec
    gpus: int
    device: str | Machine
    nodes: int | None = None
    zero: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    seq: int | None = None
    recompute: str = "none"
    precision: str | Precision | None = None
    optimizer: str | None = None
    config: str | Path | None = None


@dataclass(frozen=True)
class Resolved:
    """A request made definite.

    Args:
        plan: The plan.
        machine: The machine.
        nodes: Nodes.
        chosen: What was filled in because it was not given, as sentences.
    """

    plan: Plan
    machine: Machine
    nodes: int
    chosen: tuple[str, ...]


def refuse_unbuilt(**flags: tuple[object, object]) -> None:
    """Refuse flags of parts that are not built yet, unless neutral.

    Args:
        flags: By flag name, the value given and the neutral value.

    Raises:
        RequestError: Names the flag and the neutral value.
    """
    for name, (value, neutral) in flags.items():
        if value != neutral:
            shown = f"--{name.replace('_', '-')}"
            want = f"only {neutral}" if neutral not in (None, False) else "leave it out"
            raise RequestError(f"{shown} {value}: not built yet; {want} is understood so far")


def choice(flag: str, value: str, known: Sequence[str]) -> str:
    """Return the value if it is known.

    Raises:
        RequestError: Names the flag and the nearest value.
    """
    if value not in known:
        near = difflib.get_close_matches(value, known, n=1, cutoff=0.0)[0]
        raise RequestError(f"{flag} {value!r}: want one of {' '.join(known)}; nearest: {near!r}")
    return value


def resolve(request: Request) -> Resolved:
    """Make a request definite.

    Raises:
        RequestError: If anything in it is faulty or not built yet.
    """
    try:
        return _resolve(request)
    except OSError as error:
        raise RequestError(f"{error.filename or ''}: {error.strerror or error}") from None
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(str(error)) from None


def _resolve(request: Request) -> Resolved:
    chosen: list[str] = []
    model = load_model(request.model) if isinstance(request.model, str) else request.model
    machine = load_machine(request.device) if isinstance(request.device, str) else request.device
    if request.gpus < 1:
        raise RequestError(f"--gpus {request.gpus}: want at least 1")
    nodes = _nodes(request, machine, chosen)
    config = _config(request)
    micro, accumulation = _batch(request, config, chosen)
    plan = Plan(
        model=model,
        mesh=MeshShape({"dp": request.gpus}),
        zero=_one("zero", request.zero, config.zero_optimization.stage if config else None, 0),
        precision=_precision(request, config, machine, chosen),
        optimizer=_one("optimizer", request.optimizer, config.optimizer.name if config else None, "adamw"),
        micro_batch=micro,
        accumulation=accumulation,
        seq=_seq(request, model, chosen),
        recompute=choice("--recompute", request.recompute, ("none", "selective", "full")),
    )
    return Resolved(plan, machine, nodes, tuple(chosen))


def _nodes(request: Request, machine: Machine, chosen: list[str]) -> int:
    per_node = int(machine.devices_per_node.value)
    if request.nodes is None:
        nodes = -(-request.gpus // per_node)
        if nodes > 1:
            chosen.append(f"{nodes} nodes of {per_node} devices (--nodes not given)")
        return nodes
    if request.nodes < 1 or request.gpus % request.nodes:
        fitting = [n for n in range(1, request.gpus + 1) if request.gpus % n == 0]
        near = min(fitting, key=lambda n: abs(n - request.nodes))  # type: ignore[operator]
        raise RequestError(f"--nodes {request.nodes}: does not divide {request.gpus} ranks evenly; nearest: {near}")
    return request.nodes


def _config(request: Request) -> Config | None:
    if request.config is None:
        return None
    from shardlab.plan import read_config_file

    return read_config_file(Path(request.config))


def _one(flag: str, given: T | None, configured: T | None, default: T) -> T:
    if given is not None and configured is not None and given != configured:
        raise RequestError(
            f"--{flag} {given} contradicts the configuration, which says {configured}; drop one of the two"
        )
    return given if given is not None else configured if configured is not None else default


def _batch(request: Request, config: Config | None, chosen: list[str]) -> tuple[int, int]:
    if config is not None and request.micro_batch is None and request.global_batch is None:
        triple = config.batch(request.gpus)
        return triple.micro, triple.accumulation
    if config is not None:
        raise RequestError("--micro-batch and --global-batch contradict --config, which has its own batch keys")
    if request.micro_batch is None and request.global_batch is None:
        chosen.append("one sample per rank and step (neither --micro-batch nor --global-batch given)")
    micro = request.micro_batch
    if micro is None and request.global_batch is None:
        micro = 1
    elif micro is None and request.global_batch is not None:
        micro = 1
        chosen.append("micro-batch 1, accumulated up to --global-batch (--micro-batch not given)")
    try:
        triple = solve_batch(request.global_batch, micro, None, request.gpus)
    except ValueError as error:
        text = str(error).replace("train_micro_batch_size_per_gpu", "--micro-batch")
        raise RequestError(text.replace("train_batch_size", "--global-batch")) from None
    return triple.micro, triple.accumulation


def _seq(request: Request, model: ModelSpec, chosen: list[str]) -> int:
    if request.seq is not None:
        return request.seq
    longest = model.config.get("positions")
    if longest is None:
        return 1
    seq = min(int(longest), DEFAULT_SEQ)
    chosen.append(f"sequence of {seq:,} tokens (--seq not given; the model goes up to {longest:,})")
    return seq


def _precision(request: Request, config: Config | None, machine: Machine, chosen: list[str]) -> Precision:
    if isinstance(request.precision, Precision):
        return request.precision
    usual = "bf16" if "bf16" in machine.peak_flops_per_s else "fp16"
    if config is None and request.precision is None:
        chosen.append(f"precision {usual} (--precision not given)")
    if config is None:
        name = choice("--precision", request.precision or usual, ("fp32", "bf16", "fp16", "fp8"))
        return Precision.named(name)
    compute = config.precision.compute
    _one("precision", request.precision, compute, compute)
    return config.precision
