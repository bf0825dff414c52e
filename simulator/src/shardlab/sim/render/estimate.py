"""An estimate as text: verdict, bars against capacity, numbers, what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from shardlab.plan import CATEGORIES, Action, Op
from shardlab.plan.units import format_bytes, format_count, format_gb, format_gib, format_rate, format_s

BAR = 40
_COLOURS = {"parameters": "blue", "gradients": "cyan", "optimizer": "magenta", "activations": "green",
            "gathered": "yellow", "buffers": "bright_black", "padding": "bright_black"}  # fmt: skip
_TIMES = ("compute", "exposed_communication", "optimizer")


def render(answer: Mapping[str, Any], console: Console | None = None) -> None:
    """Print an estimate.

    Args:
        answer: What `Estimate.to_dict` returned.
        console: Where to; stdout, 100 columns wide unless it is a terminal, if not given.
    """
    out = console or _stdout()
    _verdict(answer, out)
    _memory(answer, out)
    _multipliers(answer, out)
    if "wire_bytes" in answer["result"]:
        _wire(answer, out)
    if "time_s" in answer["result"]:
        _time(answer, out)
    if answer["verdict"] != "fits":
        _changes(answer, out)
    out.print(Text("\nrests on", style="bold"))
    for sentence in answer["assumptions"]:
        out.print(Text(f"  {sentence}"))


def _stdout() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=100)


def _verdict(answer: Mapping[str, Any], out: Console) -> None:
    inputs, memory = answer["inputs"], answer["result"]["memory"]
    plan, needed, capacity = inputs["plan"], memory["per_rank_bytes"], memory["capacity_bytes"]
    fits = answer["verdict"] == "fits"
    where = f", peak in {_words(memory['peak_at'])}" if memory["peak_at"] else ", states only"
    line = Text(answer["verdict"], style="bold green" if fits else "bold red")
    line.append(f"   {format_gib(needed['reserved'])} of {format_gib(capacity)} per rank{where}", style="default")
    spare = capacity - needed["reserved"]
    line.append(f"   {format_gib(abs(spare))} {'to spare' if fits else 'too much'}", style="default")
    out.print(line)
    rows = [f"{plan['model']['name']} ({format_count(answer['result']['model']['parameters'], 4)} parameters)",
            f"{inputs['gpus']} x {inputs['machine']['title']}", f"ZeRO {plan['zero']}", plan["precision"]["compute"],
            plan["optimizer"]]  # fmt: skip
    facts = answer["result"]["model"]
    if "vocabulary_parameters" in facts:
        rows[0] += f", of them vocabulary {facts['vocabulary_parameters']:,}"
    if plan["model"]["family"] != "count":
        rows += [f"micro-batch {plan['micro_batch']} x {plan['accumulation']}", f"sequence {plan['seq']:,}",
                 f"recompute {plan['recompute']}"]  # fmt: skip
    out.print(Text("  ".join(rows[:2])))
    out.print(Text("  ".join(rows[2:])))


def _words(action: str) -> str:
    """An action of a program as a reader says it."""
    found = Action.parse(action)
    what = {Op.F: "forward of", Op.B: "backward of", Op.R: "recomputation of", Op.STEP: "the optimizer's step"}
    return f"{what.get(found.op, found.op.name.lower())} {found.name}".strip()


def _bar(part: float, whole: float, style: str) -> Text:
    filled = min(part / whole, 1.0) * BAR if whole else 0.0
    text = "█" * int(filled) + ("▌" if filled % 1 >= 0.5 else "▏" if filled > 0 and int(filled) == 0 else "")
    return Text(text, style=style)


def _row(out: Console, label: str, number: str, other: str, bar: Text) -> None:
    out.print(Text.assemble(f"{label:<22}{number:>11}{other:>12}  ", bar))


def _memory(answer: Mapping[str, Any], out: Console) -> None:
    memory = answer["result"]["memory"]
    needed, capacity = memory["per_rank_bytes"], memory["capacity_bytes"]
    out.print(Text(f"\nmemory per rank{'':<18}GiB          GB", style="bold"))
    for name in CATEGORIES:
        if needed[name]:
            _line(out, name, needed[name], _bar(needed[name], capacity, _COLOURS[name]))
    _line(out, "allocated (peak)", needed["allocated"], _bar(needed["allocated"], capacity, "default"))
    if needed["reserved"] != needed["allocated"]:
        _line(out, "reserved", needed["reserved"], _bar(needed["reserved"], capacity, "default"))
    _line(out, "capacity", capacity, Text("░" * BAR))


def _line(out: Console, label: str, num_bytes: int, bar: Text) -> None:
    if abs(num_bytes) < 10**6:
        _row(out, label, format_bytes(num_bytes), "", bar)
        return
    gib, gb = format_gib(num_bytes, 4).removesuffix(" GiB"), format_gb(num_bytes, 4).removesuffix(" GB")
    _row(out, label, gib, gb, bar)


def _multipliers(answer: Mapping[str, Any], out: Console) -> None:
    found = answer["result"]["memory"]["bytes_per_parameter"]
    out.print(Text("\nbytes per parameter", style="bold"))
    whole = 0
    for held in found:
        shared = f" / {held['divided_by']} ranks" if held["divided_by"] > 1 else ""
        whole += held["bytes"] if held["category"] != "buffers" and held["what"] != "frozen parameters" else 0
        note = "   an extra copy, under buffers" if held["category"] == "buffers" else ""
        out.print(Text(f"  {held['bytes']:>2}{shared:<14} {held['what']} ({held['dtype']}){note}"))
    out.print(Text(f"  {whole:>2}{'':<14} in all, before sharding; padding and buffers apart"))


def _wire(answer: Mapping[str, Any], out: Console) -> None:
    out.print(Text("\non the wire per rank and step", style="bold"))
    for axis, num_bytes in answer["result"]["wire_bytes"].items():
        out.print(Text(f"  {axis:<8} {format_gb(num_bytes)}"))


def _time(answer: Mapping[str, Any], out: Console) -> None:
    spent, speed = answer["result"]["time_s"], answer["result"]["throughput"]
    out.print(Text(f"\nstep {format_s(spent['step'])}, roughly", style="bold"))
    for name in _TIMES:
        _row(out, name.replace("_", " "), format_s(spent[name]), "", _bar(spent[name], spent["step"], "default"))
    out.print(Text(
        f"  {speed['tokens_per_s']:,.0f} tokens/s, {speed['tokens_per_s_per_gpu']:,.0f} per rank; "
        f"{format_rate(speed['model_flops_per_s_per_gpu'], 'FLOP')} per rank, {speed['mfu']:.0%} of the peak"
    ))  # fmt: skip


def _changes(answer: Mapping[str, Any], out: Console) -> None:
    found = answer["result"].get("changes", [])
    out.print(Text("\nthe cheapest changes that fit" if found else "\nno change that was tried fits", style="bold"))
    for change in found:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change["flags"].items())
        step = f", step {format_s(change['step_s'])}" if "step_s" in change else ""
        out.print(Text(f"  {flags:<44} {format_gib(change['reserved_bytes'])}{step}"))
