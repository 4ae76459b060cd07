"""``python -m deepinfer.checkpoint``: look at a checkpoint, check it, make a tiny one, plan for one, fetch one."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepinfer.command_line import Arguments
from deepinfer.engine.checkpoint import config as configuration
from deepinfer.engine.checkpoint import shards
from deepinfer.engine.checkpoint.config import Config
from deepinfer.engine.checkpoint.download import locate
from deepinfer.engine.checkpoint.errors import SHOWN
from deepinfer.engine.checkpoint.inventory import parts, tensors
from deepinfer.engine.checkpoint.plan import ENGRAM, RESERVE, Plan, plan
from deepinfer.engine.checkpoint.released import REPOSITORY, released_config
from deepinfer.engine.progress import bar
from deepinfer.errors import DeepInferError, UsageError

PROG = "python -m deepinfer.checkpoint"
SCHEMA = 1  # of every --json document


def main(words: list[str] | None = None) -> int:
    """Exit code 0: done and right; 1: something is wrong with the checkpoint or the plan; 2: usage."""
    try:
        options = _parser().parse_args(words)
        run: Callable[[Namespace], int] = options.run
        return run(options)
    except UsageError as error:
        sys.stderr.write("%s\n" % error)
        return 2
    except DeepInferError as error:
        sys.stderr.write("%s\n" % error)
        return 1


def _parser() -> Arguments:
    parser = Arguments(prog=PROG, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect = commands.add_parser("inspect", help="sizes and shapes, from config.json, index and headers")
    inspect.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    inspect.add_argument("--released", action="store_true", help="the released configuration; needs no files")
    check = commands.add_parser("verify", help="check everything and report every problem")
    check.add_argument("folder", type=Path, metavar="DIR")
    check.add_argument("--headers", action="store_true", help="do not read payloads (no search for NaN)")
    make = commands.add_parser("make-tiny", help="write a checkpoint of a few megabytes with random weights")
    make.add_argument("folder", type=Path, metavar="DIR")
    make.add_argument("--seed", type=int, required=True, help="the same seed gives the same bytes")
    make.add_argument("--index-heads", type=int, default=16, metavar="K", help="heads of the indexer (default: 16)")
    planned = commands.add_parser("plan", help="weights and context of N equal devices")
    planned.add_argument("--devices", type=int, required=True, metavar="N")
    planned.add_argument("--memory-bytes", type=int, required=True, metavar="M", help="memory of one device")
    planned.add_argument("--engram", default="host", metavar="{%s}" % ",".join(ENGRAM), help="where the tables are")
    planned.add_argument("--reserve-bytes", type=int, default=RESERVE, metavar="R", help="(default: %d)" % RESERVE)
    planned.add_argument("--model", type=Path, metavar="DIR", help="plan for this checkpoint, not the released one")
    fetch = commands.add_parser("download", help="fetch a checkpoint, or print where DEEPINFER_HF_MODEL_DIR has it")
    fetch.add_argument("repository", nargs="?", default=REPOSITORY, metavar="REPO")
    for command, run in ((inspect, _inspect), (check, _verify), (make, _make), (planned, _plan), (fetch, _download)):
        command.set_defaults(run=run)
        if command in (inspect, check, planned):
            command.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps({"schema": SCHEMA, **document}, indent=1))


def _rows(rows: dict[str, Any]) -> None:
    width = max(map(len, rows))
    for name, value in rows.items():
        print("%-*s  %s" % (width, name, f"{value:>15,}" if isinstance(value, int) else value))


def _inspect(options: Namespace) -> int:
    if options.released == (options.folder is not None):
        raise UsageError("inspect takes DIR or --released", fix="%s inspect --released" % PROG)
    config: Config
    found = {}
    if options.released:
        config = released_config()
    else:
        config = configuration.read(options.folder)
        files = shards.open_files(options.folder)
        found = {
            "stored_tensors": len(files.stored),
            "stored_bytes": files.payload(),
            "shards": len(set(files.index.values())),
        }
    needed = list(tensors(config))
    by_part = parts(needed)
    text = config.text
    document = {
        "model": "released" if options.released else str(options.folder),
        "layers": text.num_hidden_layers,
        "draft_layers": text.num_nextn_predict_layers,
        "tensors": len(needed),
        "parameters": sum(size.parameters for size in by_part.values()),
        "payload_bytes": sum(size.bytes for size in by_part.values()),
        **found,
        "parts": {part: size._asdict() for part, size in by_part.items()},
    }
    if options.json:
        _print_json(document)
        return 0
    _rows({key.replace("_", " "): value for key, value in document.items() if key != "parts"})
    width = max(map(len, by_part))
    print("\n%-*s  %8s  %16s  %16s" % (width, "part", "tensors", "parameters", "bytes"))
    for part, size in by_part.items():
        print(f"{part:<{width}}  {size.tensors:>8,}  {size.parameters:>16,}  {size.bytes:>16,}")
    return 0


def _verify(options: Namespace) -> int:
    from deepinfer.engine.checkpoint.verify import verify

    report = verify(options.folder, values=not options.headers, progress=bar("verifying"))
    if options.json:
        document = {"ok": not report.problems, "folder": str(report.folder), "tensors": report.tensors}
        document.update(payload_bytes=report.payload_bytes, shards=report.files, values_searched=report.values)
        _print_json({**document, "problems": [problem.row() for problem in report.problems]})
        return int(bool(report.problems))
    for problem in report.problems[:SHOWN]:
        print("%s: %s\n  fix: %s" % (problem.code, problem.text(), problem.fix))
    if len(report.problems) > SHOWN:
        print("and %d more; --json lists them all" % (len(report.problems) - SHOWN))
    numbers = (report.tensors, report.payload_bytes, report.files)
    searched = "values searched" if report.values else "values not searched"
    state = "%d problems" % len(report.problems) if report.problems else "complete"
    print("%s: %d tensors, %d bytes in %d shards, %s" % (state, *numbers, searched))
    return int(bool(report.problems))


def _make(options: Namespace) -> int:
    from deepinfer.engine.checkpoint.tiny import make

    make(options.folder, options.seed, options.index_heads)
    print(options.folder)
    return 0


def _plan(options: Namespace) -> int:
    config = configuration.read(options.model) if options.model else released_config()
    answer = plan(config, options.devices, options.memory_bytes, options.engram, options.reserve_bytes)
    document = _plan_rows(answer)
    if options.json:
        _print_json({"devices": answer.devices, "engram": answer.engram, **document})
        return 0
    print(
        "%d devices, Engram tables in %s memory; bytes per device unless said otherwise"
        % (answer.devices, answer.engram)
    )
    _rows({key.replace("_", " "): value for key, value in document.items()})
    return 0


def _plan_rows(answer: Plan) -> dict[str, int]:
    return {
        "memory_bytes": answer.memory,
        "reserve_bytes": answer.reserve,
        "routed_expert_bytes": answer.experts,
        "engram_table_bytes": answer.tables,
        "replicated_bytes": answer.replicated,
        "weight_bytes": answer.weights,
        "host_bytes": answer.host,
        "kv_budget_bytes": answer.budget,
        "bytes_per_token": answer.request.per_token,
        "bytes_per_request": answer.request.state,
        "tokens_that_fit": answer.tokens,
        "longest_context": answer.longest,
        "requests_of_it": answer.full_requests,
    }


def _download(options: Namespace) -> int:
    print(locate(options.repository))
    return 0
