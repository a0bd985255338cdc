"""`python -m bench._gateway.soak [SECONDS]`: the compiled gateway under full load, streamed and not; prints its memory and whether it is flat.

Flat: the median of the last third is at most five percent above that of the second. The first third is not counted: caches fill.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.gateway import HERE, SMALL, _compiled, _free_port, _plan, _python, _wait


def main(seconds: float) -> bool:
    upstream, port = _free_port(), _free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "gateway.yaml"
        config.write_text(_plan(upstream))
        double = _python("-m", "bench._gateway.upstream", str(upstream))
        command = ["-m", "wardwright", "serve", "--config", str(config), "--db", f"{folder}/gateway.db"]
        gateway = _python(*command, "--port", str(port), path=_compiled())
        try:
            _wait(upstream)
            _wait(port)
            return _soak(gateway.pid, port, seconds)
        finally:
            gateway.terminate()
            gateway.wait(60)
            double.kill()
            double.wait()


def _soak(pid: int, port: int, seconds: float) -> bool:
    began = time.monotonic()
    samples: list[tuple[float, float]] = []
    requests = failed = 0
    stream = 0
    while (passed := time.monotonic() - began) < seconds:
        sent = [str(port), str(SMALL), str(stream), "16", "5", str(time.time_ns())]
        done = subprocess.run(
            [sys.executable, "-m", "bench._gateway.load", *sent], cwd=HERE.parent, capture_output=True, check=True
        )
        told = json.loads(done.stdout)
        requests, failed, stream = requests + told["requests"], failed + told["failed"], 1 - stream
        samples.append((passed, _memory(pid)))
        print(f"  {passed:5.0f} s  {requests:9,} requests  {samples[-1][1]:7.1f} MB", flush=True)
    second = statistics.median(size for at, size in samples if seconds / 3 <= at < seconds * 2 / 3)
    last = statistics.median(size for at, size in samples if at >= seconds * 2 / 3)
    flat = last <= second * 1.05 and not failed
    print(
        f"  {requests:,} requests, {failed} failed; {second:.1f} MB, then {last:.1f} MB: {'flat' if flat else 'NOT FLAT'}"
    )
    return flat


def _memory(pid: int) -> float:
    """Resident megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    sys.exit(0 if main(float(sys.argv[1]) if len(sys.argv) > 1 else 600.0) else 1)
