"""A private PostgreSQL server for tests: a temporary folder, a Unix socket in it, no port, no service."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

PROGRAMS = Path("/usr/lib/postgresql")


class PostgresServer:
    """Made empty, started and stopped at will, gone with `remove`. Never run by root, who may not."""

    def __init__(self) -> None:
        found = sorted(PROGRAMS.glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
        if not found:
            raise FileNotFoundError(f"no PostgreSQL under {PROGRAMS}")
        self._programs = found[-1].parent
        self._user = "postgres" if os.geteuid() == 0 else None
        # Not below pytest's own folder, which other users may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        if self._user:
            record = pwd.getpwnam(self._user)
            os.chown(self.folder, record.pw_uid, record.pw_gid)
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--no-locale")

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def address(self) -> str:
        return f"postgresql://tester@/postgres?host={quote(str(self.folder), safe='')}"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._user,
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def start(self) -> None:
        settings = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c shared_buffers=32MB -c max_connections=60"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        shutil.rmtree(self.folder)
