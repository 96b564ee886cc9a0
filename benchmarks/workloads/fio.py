"""fio: sequential and random reads and writes of one file.

fio needs 0.3 s to start, several times what the work takes on a native filesystem. So its own clock
counts, which runs while it reads or writes, the fsync at the end included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.inputs.materials import Inputs
from benchmarks.system import BenchError, run_tool

FILE_MIB = 128
RANDOM_MIB = 32
"""What one job of 4 KiB blocks reads or writes: 8,192 requests."""


def job(pattern: str, block: str, size_mib: int) -> Callable[[Path, Inputs], float]:
    """A workload: one fio job of this pattern on the file ``fio.data``."""
    writes = "write" in pattern

    def run(directory: Path, inputs: Inputs) -> float:
        argv = ["fio", "--name=bench", "--filename=fio.data", f"--size={FILE_MIB}m"]
        argv += [f"--rw={pattern}", f"--bs={block}", f"--io_size={size_mib}m", "--ioengine=psync"]
        argv += ["--randseed=1", "--invalidate=0", "--fallocate=none", "--output-format=json"]
        # Without these every page is the same, which a store that finds duplicates would not keep.
        argv += ["--refill_buffers", "--buffer_compress_percentage=50"]
        if writes:
            argv.append("--end_fsync=1")
        said = run_tool(argv, cwd=directory, env=inputs.env)
        # Warnings come before the document.
        document = json.loads(said[said.index(b"{") :])
        result = document["jobs"][0]["write" if writes else "read"]
        if document["jobs"][0]["error"] or result["io_bytes"] != size_mib << 20:
            raise BenchError(f"fio did {result['io_bytes']} bytes of {size_mib} MiB")
        return float(document["jobs"][0]["job_runtime"]) / 1e3

    return run


seq_write = job("write", "1m", FILE_MIB)
seq_read = job("read", "1m", FILE_MIB)
rand_read = job("randread", "4k", RANDOM_MIB)
rand_write = job("randwrite", "4k", RANDOM_MIB)
