"""One rank of a run, started by hand: ``rank_child.py RANK REQUEST`` (JSON).

Prints the result as one JSON object, or the error and the time (Unix seconds) it came.
Leaves with ``os._exit``: a rank that failed must not wait for its peer.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from lockstep.compose import from_kwargs, from_yaml
from lockstep.errors import StopRequested, TrainingFailed
from lockstep.training import train_run


def main(rank: int, request: dict[str, Any]) -> int:
    jax.config.update("jax_num_cpu_devices", 1)
    jax.distributed.initialize(
        f"localhost:{request['port']}",
        num_processes=request["processes"],
        process_id=rank,
        initialization_timeout=60,
    )
    folder = request["folder"]
    if request["resume"]:
        cfg, where = from_yaml(Path(folder) / "config.yaml"), {"run_dir": None, "resume": folder}
    else:
        cfg = from_kwargs(request["task"], **request["keywords"])
        where = {"run_dir": folder, "resume": None}
    try:
        print(json.dumps(asdict(train_run(cfg, **where))), flush=True)
    except (TrainingFailed, StopRequested) as error:
        print(json.dumps({"failed": str(error), "at": time.time()}), flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(int(sys.argv[1]), json.loads(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)
