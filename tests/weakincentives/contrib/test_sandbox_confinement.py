"""Claims of the sandbox with the real Podman and the real bubblewrap: the same for both, and nothing is a mock."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.sandbox import SandboxUnavailableError, choose_backend
from weakincentives.contrib.tools.podman import PodmanConfig, PodmanSandboxSection
from weakincentives.errors import DeadlineExceededError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.filesystem.host import HostFilesystem
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Session, ToolCall, ToolOutcome, aexecute_tool, execute_tool, tool_transaction

pytestmark = pytest.mark.heavy

MIB = 1024 * 1024
LIMITS: dict[str, Any] = {
    "memory": 128 * MIB,
    "pids": 32,
    "timeout": 20.0,
    "disk": 16 * MIB,
    "entries": 500,
    "tmp": 4 * MIB,
    "output_limit": 4000,
    "env": {"GREETING": "hello world"},
}

CALLS = {"x86_64": (321, 425, 250, 323), "aarch64": (280, 425, 219, 282)}

# -- an image of this machine's busybox and Python ---------------------------------------------------------------------


def libraries_of(paths: list[str]) -> set[str]:
    run = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False)
    return {word for word in run.stdout.split() if word.startswith("/") and not word.endswith(":")}


def python_files() -> Iterator[tuple[str, str]]:
    """Places on this machine and in the image."""
    program = os.path.realpath("/usr/bin/python3")
    library = f"/usr/lib/{os.path.basename(program)}"
    modules: list[str] = []
    for folder, folders, names in os.walk(library):
        folders[:] = [
            name for name in folders if name not in {"__pycache__", "test", "ensurepip", "idlelib", "tkinter"}
        ]
        for name in names:
            yield os.path.join(folder, name), os.path.join(folder, name)
            if name.endswith(".so"):
                modules.append(os.path.join(folder, name))
    yield program, "/usr/bin/python3"
    for path in libraries_of([program, *modules]):
        yield os.path.realpath(path), path


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with busybox, Python, and a program that would make its user root."""
    for program in ("podman", "busybox", "ldd"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install podman runc busybox-static)")
    busybox = os.path.realpath(shutil.which("busybox") or "")
    source = Path(__file__).read_text("utf-8").partition("# -- an image")[2].partition("class Desk")[0]
    recipe = hashlib.blake2b(source.encode() + Path(busybox).read_bytes(), digest_size=6).hexdigest()
    name = f"localhost/sandbox-test:{recipe}"
    if subprocess.run(["podman", "image", "exists", name], capture_output=True, check=False).returncode == 0:
        return name
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with tarfile.open(archive, "w") as tar:
        tar.add(busybox, "bin/busybox")
        for applet in {*applets} - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for source, place in python_files():
            tar.add(source, place, recursive=False)
        program = os.path.realpath("/usr/bin/python3")
        setuid = tar.gettarinfo(program, "bin/rootpython")
        setuid.mode = 0o4755
        with open(program, "rb") as file:
            tar.addfile(setuid, file)
    subprocess.run(["podman", "import", str(archive), name], capture_output=True, check=True)
    return name


@pytest.fixture(scope="session", params=["podman", "bubblewrap"])
def config(request: pytest.FixtureRequest) -> PodmanConfig:
    if request.param == "bubblewrap":
        return PodmanConfig(backend="bubblewrap", **LIMITS)
    return PodmanConfig(backend="podman", image=request.getfixturevalue("image"), **LIMITS)


@pytest.fixture(scope="session")
def section(config: PodmanConfig) -> PodmanSandboxSection:
    try:
        return PodmanSandboxSection(config=config)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


class Desk:
    """A session over one filesystem, with the section's tools."""

    def __init__(self, section: PodmanSandboxSection, files: dict[str, str | bytes] | None = None, **more: Any) -> None:
        self.files: Any = InMemoryFilesystem(files or {}, **more)
        self.session = Session()
        self.prompt = Prompt(PromptTemplate(sections=[section])).bind(resources={Filesystem: self.files})

    def shell(self, command: str, **arguments: Any) -> ToolOutcome:
        return self._call("shell_execute", {"command": command, **arguments})

    def python(self, code: str, **arguments: Any) -> ToolOutcome:
        return self._call("python_execute", {"code": code, **arguments})

    def _call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        return execute_tool(ToolCall(name, arguments), prompt=self.prompt, session=self.session)

    def tree(self) -> dict[str, bytes]:
        return {path: self.files.read_bytes(path) for path in self.files.glob("**")}


@pytest.fixture
def desk(section: PodmanSandboxSection) -> Desk:
    return Desk(section, {"a.txt": "alpha", "d/b.txt": "beta", "d/c.txt": "gamma"})


def running(mark: str) -> list[str]:
    """The command lines on this machine that hold a mark."""
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes()
        except OSError:
            continue
        if mark.encode() in line:
            found.append(line.decode(errors="replace"))
    return found


def marker() -> str:
    return str(10**9 + int.from_bytes(os.urandom(3), "big"))


# -- which backend -----------------------------------------------------------------------------------------------------


def test_podman_comes_first_where_it_can_run(image: str) -> None:
    """Without a word in the configuration."""
    assert PodmanSandboxSection(config=PodmanConfig(image=image)).backend == "podman"


@pytest.mark.parametrize("options", [{"engine": "podman-that-is-not-there"}, {"image": "localhost/not-there"}])
def test_bubblewrap_stands_in_where_podman_cannot_run(options: dict[str, Any]) -> None:
    """Whether Podman or only the image is missing."""
    assert PodmanSandboxSection(config=PodmanConfig(**options)).backend == "bubblewrap"


def test_a_backend_is_proven_once(config: PodmanConfig) -> None:
    """The second section with the same configuration asks nothing."""
    assert choose_backend(config) is choose_backend(replace(config))


# -- what is kept, and what is not -------------------------------------------------------------------------------------


def test_what_a_successful_command_changed_is_kept(desk: Desk) -> None:
    """Writes, new directories and deletions all arrive."""
    outcome = desk.shell("echo new > n.txt; mkdir -p x/y; echo deep > x/y/z; rm d/b.txt; echo more >> a.txt")

    assert outcome.success, outcome.text
    assert desk.tree() == {"a.txt": b"alphamore\n", "d/c.txt": b"gamma", "n.txt": b"new\n", "x/y/z": b"deep\n"}
    assert outcome.value.changed == ("a.txt", "d/b.txt", "n.txt", "x", "x/y", "x/y/z")


def test_kinds_may_change_places(desk: Desk) -> None:
    """A directory becomes a file, a file a directory, and a directory made anew holds nothing of the old one."""
    outcome = desk.shell("rm -r d a.txt; mkdir a.txt; echo in > a.txt/in; echo file > d")
    assert outcome.success, outcome.text
    assert desk.tree() == {"a.txt/in": b"in\n", "d": b"file\n"}

    assert desk.shell("rm -r a.txt; mkdir a.txt; echo other > a.txt/other").success
    assert desk.tree() == {"a.txt/other": b"other\n", "d": b"file\n"}


def test_a_moved_directory_arrives_whole(desk: Desk) -> None:
    """A rename is a deletion and new files."""
    assert desk.shell("mv d e").success
    assert desk.tree() == {"a.txt": b"alpha", "e/b.txt": b"beta", "e/c.txt": b"gamma"}


def test_a_failing_command_leaves_no_trace(desk: Desk) -> None:
    """Its code and both streams are told, and its changes are gone, also for the next command."""
    before = desk.tree()
    outcome = desk.shell("echo out; echo err >&2; echo x > new; rm -r d; exit 3")

    assert outcome.outcome == "failed"
    assert outcome.text == "Exit code 3. Nothing the command changed was kept.\n\nstdout:\nout\nstderr:\nerr"
    assert (outcome.result.value.exit_code, desk.tree()) == (3, before)
    assert desk.shell("ls -1").value.stdout == "a.txt\nd\n"


def test_a_command_sees_what_others_wrote_before_it(desk: Desk) -> None:
    """Each command starts from the files as they are."""
    desk.shell("echo 1 > one")
    desk.files.write("one", "changed")
    desk.files.write("two/deep", "2")
    desk.files.delete("d", recursive=True)
    desk.files.delete("a.txt")
    desk.files.write("a.txt/now", "a directory")

    assert (
        desk.shell("cat one two/deep; find . -type f | sort").value.stdout == "changed2./a.txt/now\n./one\n./two/deep\n"
    )


def test_a_transaction_around_takes_the_changes_back(desk: Desk) -> None:
    """The changes of a command are writes like any other."""
    before = desk.tree()
    with pytest.raises(LookupError), tool_transaction(desk.session, desk.prompt.resources):
        assert desk.shell("echo x > new").success
        assert desk.files.exists("new")
        raise LookupError

    assert desk.tree() == before
    assert desk.shell("test ! -e new").success


def test_a_read_only_file_stays_as_it_is(section: PodmanSandboxSection) -> None:
    """The Filesystem has the last word."""
    desk = Desk(section, {"keep.lock": "locked", "a": "1"}, readonly="*.lock")
    outcome = desk.shell("echo 2 > a; rm -f keep.lock; echo open > keep.lock")

    assert outcome.outcome == "failed"
    assert "keep.lock" in outcome.text
    assert desk.tree() == {"a": b"1", "keep.lock": b"locked"}


def test_bytes_come_back_exactly(desk: Desk) -> None:
    """Nothing is taken for text."""
    data = bytes(range(256)) * 20
    desk.files.write("raw", data)
    assert desk.shell("cat raw raw > twice").success
    assert desk.files.read_bytes("twice") == data + data


# -- files on disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(section: PodmanSandboxSection, tmp_path: Path) -> Desk:
    """A desk over a directory of the host, with a few things a sandbox must not be shown or must not lose."""
    (tmp_path / "secret").write_text("the crown jewels")
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "a.txt").write_text("alpha")
    (root / "d" / "run.sh").write_text("echo ran\n")
    (root / "d" / "run.sh").chmod(0o755)
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("../secret")
    (root / "dangling").symlink_to("nowhere")
    (root / "inside").symlink_to("a.txt")
    os.mkfifo(root / "pipe")
    desk = Desk(section)
    desk.files = HostFilesystem(root)
    desk.prompt = Prompt(PromptTemplate(sections=[section])).bind(resources={Filesystem: desk.files})
    return desk


def listing(root: str) -> dict[str, tuple[int, bytes]]:
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(Path(root).rglob("*")):
        if ".weakincentives" in str(path):
            continue
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


def test_links_and_programs_are_kept_on_the_disk(disk: Desk) -> None:
    """A link that stays inside is made as it is, and a script becomes a program for those who may read it."""
    root = Path(disk.files.root)
    (root / "a.txt").chmod(0o640)
    outcome = disk.shell("ln -s a.txt l; ln -s /work/a.txt d/l; chmod +x a.txt; chmod -x d/run.sh")
    assert outcome.success, outcome.text
    assert ((root / "l").readlink(), (root / "d" / "l").readlink()) == (Path("a.txt"), Path("../a.txt"))
    assert [(root / name).stat().st_mode & 0o777 for name in ("a.txt", "d/run.sh")] == [0o750, 0o644]


def test_a_command_works_on_files_of_the_disk(disk: Desk) -> None:
    """Programs keep their modes, changes arrive, and the rest of the tree is as it was."""
    root = disk.files.root
    before = listing(root)
    outcome = disk.shell("./d/run.sh; cat inside; echo new > d/new; rm a.txt")

    assert outcome.success, outcome.text
    assert outcome.value.stdout == "ran\nalpha"
    after = listing(root)
    assert after.pop("d/new")[1] == b"new\n"
    assert before.pop("a.txt")[1] == b"alpha"
    assert after == before


def test_a_failing_command_does_not_touch_the_disk(disk: Desk) -> None:
    """Not one file, mode or link."""
    before = listing(disk.files.root)
    assert disk.shell("rm -rf d a.txt; echo x > new; exit 1").outcome == "failed"
    assert listing(disk.files.root) == before


def test_links_of_the_disk_lead_nowhere(disk: Desk) -> None:
    """What a link of the workspace points to outside can be neither read nor written."""
    root = disk.files.root
    outcome = disk.shell("cat out up dangling pipe 2>/dev/null; ls; true", timeout=5)
    assert outcome.value.stdout == "a.txt\nd\ninside\n"
    disk.shell("echo owned > out; echo owned > up")
    assert (Path(root).parent / "secret").read_text() == "the crown jewels"


def test_a_change_on_the_disk_is_seen_by_the_next_command(disk: Desk) -> None:
    """Also one that nobody told us of."""
    assert disk.shell("cat a.txt").value.stdout == "alpha"
    (Path(disk.files.root) / "a.txt").write_text("omega")
    assert disk.shell("cat a.txt").value.stdout == "omega"


# -- running -----------------------------------------------------------------------------------------------------------


def test_input_directory_and_variables_reach_the_command(desk: Desk) -> None:
    """What the call and the owner of the sandbox say is what the command finds."""
    outcome = desk.shell('cat; pwd; echo "$GREETING"', stdin="typed\n", cwd="/work/d")
    assert outcome.value.stdout == "typed\n/work/d\nhello world\n"


def test_python_imports_from_the_workspace(desk: Desk) -> None:
    """A program finds the modules beside it, and leaves no bytecode behind."""
    desk.files.write("lib/area.py", "def of(a, b): return a * b")
    outcome = desk.python("import area\nprint(area.of(6, 7), input())", cwd="lib", stdin="in\n")

    assert outcome.success, outcome.text
    assert outcome.value.stdout == "42 in\n"
    assert outcome.value.changed == ()


def test_a_python_error_is_a_failed_result_with_its_traceback(desk: Desk) -> None:
    """The model reads which line it was."""
    outcome = desk.python("x = 1\nx / 0")
    assert outcome.outcome == "failed"
    assert "line 2" in outcome.text
    assert "ZeroDivisionError" in outcome.text


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 125", 125), ("exit 126", 126), ("no-such-program", 127), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_the_exit_code_is_the_commands_own(desk: Desk, command: str, code: int) -> None:
    """Also where the backend uses the same number for something else, and after a signal."""
    assert desk.shell(command).result.value.exit_code == code


def test_endless_output_is_cut_while_it_runs(desk: Desk) -> None:
    """Beginning and end are kept, the middle is counted."""
    outcome = desk.shell("echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last")

    assert outcome.value.stdout_truncated
    assert len(outcome.value.stdout) < 4100
    assert outcome.value.stdout.startswith("first\nxxx")
    assert outcome.value.stdout.endswith("xxx\nlast\n")
    assert re.search(r"\[\.\.\. 299\d{5} bytes cut \.\.\.\]", outcome.value.stdout)


def test_two_commands_at_once_do_not_mix(section: PodmanSandboxSection) -> None:
    """Sessions with their own files run side by side, each on its own."""
    desks = [Desk(section, {"name": str(number)}) for number in range(3)]
    outcomes: dict[int, ToolOutcome] = {}

    def work(number: int) -> None:
        outcomes[number] = desks[number].shell("cat name; cp name copy; ls -1")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for number, desk in enumerate(desks):
        assert outcomes[number].value.stdout == f"{number}copy\nname\n"
        assert desk.tree() == {"name": str(number).encode(), "copy": str(number).encode()}


# -- ending ------------------------------------------------------------------------------------------------------------


def test_a_timeout_kills_the_command_and_its_descendants(desk: Desk) -> None:
    """Also those that left its session and closed its pipes."""
    mark, before = marker(), desk.tree()
    outcome = desk.shell(
        f"echo begun; echo x > new; (setsid sh -c 'sleep {mark} & sleep {mark}' >/dev/null 2>&1 &); sleep {mark}",
        timeout=1,
    )

    assert outcome.text == (
        "Killed: the command was not done within 1 seconds. Nothing it changed was kept.\n"
        "Retry with a longer timeout (at most 20) or less work at once.\n\nstdout:\nbegun"
    )
    assert running(mark) == []
    assert desk.tree() == before


def test_background_processes_end_with_their_command(desk: Desk) -> None:
    """A daemon does not outlive the call that started it."""
    mark = marker()
    assert desk.shell(f"(setsid sleep {mark} >/dev/null 2>&1 &)").success
    assert running(mark) == []


def test_ignoring_signals_does_not_help(desk: Desk) -> None:
    """A command that traps everything is killed all the same."""
    mark = marker()
    outcome = desk.shell(f"trap '' TERM INT HUP QUIT; while :; do sleep {mark}; done", timeout=0.5)
    assert outcome.text.startswith("Killed: the command was not done within 0.5 seconds.")
    assert running(mark) == []


def test_the_deadline_of_the_run_ends_a_command(desk: Desk) -> None:
    """It is killed when the time of the whole run is over, and the run ends."""
    mark = marker()
    with pytest.raises(DeadlineExceededError):
        execute_tool(
            ToolCall("shell_execute", {"command": f"sleep {mark}"}),
            prompt=desk.prompt,
            session=desk.session,
            deadline=Deadline.after(1.0),
        )
    assert running(mark) == []


def test_a_cancelled_call_kills_its_command(desk: Desk) -> None:
    """Nobody waits for it, and it is dead before another command has the workspace."""
    mark = marker()

    async def cancel() -> None:
        call = ToolCall("shell_execute", {"command": f"echo x > new; sleep {mark}"})
        task = asyncio.ensure_future(aexecute_tool(call, prompt=desk.prompt, session=desk.session))
        while not running(mark):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert desk.shell("test ! -e new").success
    assert running(mark) == []


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_fork_bomb_stays_small(desk: Desk) -> None:
    """There are no more processes than allowed, and the machine does not notice."""
    outcome = desk.python(
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while made < 500:\n"
        "        if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "        made += 1\n"
        "except OSError as error: print(type(error).__name__)\n"
        "print(made)"
    )
    name, made = outcome.value.stdout.split()
    assert name == "BlockingIOError"
    assert 8 <= int(made) <= LIMITS["pids"]


def test_too_much_memory_of_one_process_is_refused(desk: Desk) -> None:
    """A command cannot take what it is not given."""
    outcome = desk.python("data = bytearray(600 * 1024 * 1024)\nprint(len(data))")
    assert outcome.outcome == "failed"
    assert "629145600" not in outcome.text


def test_too_much_memory_of_many_processes_is_refused(desk: Desk) -> None:
    """The limit holds for all of them together."""
    outcome = desk.python(
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        data = bytearray(os.urandom(1024 * 1024) * 40); time.sleep(10); print('survived', flush=True); os._exit(0)\n"
        "while True:\n"
        "    if os.wait()[1]: raise SystemExit(137)\n"
    )
    assert outcome.outcome == "failed"
    assert "128 MiB of memory" in outcome.text
    assert "survived" not in outcome.text


def test_one_huge_file_is_refused(desk: Desk) -> None:
    """Also a hole, which takes no room until it is kept."""
    for command in ("head -c 200000000 /dev/zero > big", "truncate -s 100G big"):
        outcome = desk.shell(command)
        assert outcome.outcome == "failed"
        assert not desk.files.exists("big")


def test_many_large_files_are_refused(desk: Desk) -> None:
    """The workspace grows by no more than allowed."""
    outcome = desk.shell("i=0; while [ $i -lt 400 ]; do head -c 4000000 /dev/zero > f$i; i=$((i+1)); done")
    assert outcome.text.startswith(
        "Killed: the command wrote more than 16 MiB. Nothing it changed was kept.\n"
        "Retry with smaller files, or write to /tmp what need not stay."
    )
    assert "f0" not in desk.tree()


def test_very_many_files_are_refused(desk: Desk) -> None:
    """Small ones count too."""
    outcome = desk.python("for n in range(5000): open(f'f{n}', 'w').close()")
    assert outcome.text.startswith(
        "Killed: the command changed more than 500 files and directories. Nothing it changed was kept.\n"
        "Retry with fewer files at once."
    )


def test_the_temporary_folders_are_small(desk: Desk) -> None:
    """Neither /tmp nor shared memory takes more than it should."""
    outcome = desk.shell(
        "for p in /tmp /dev/shm; do head -c 50000000 /dev/zero > $p/big; wc -c < $p/big; done", timeout=10
    )
    assert [int(size) <= 4 * MIB for size in outcome.value.stdout.split()] == [True, True]


# -- the host's files --------------------------------------------------------------------------------------------------


def test_a_file_of_the_host_cannot_be_read(desk: Desk, tmp_path: Path) -> None:
    """Not by its path, nor through any process's root."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the crown jewels")
    os.chmod(secret, 0o644)
    outcome = desk.shell(
        f"cat {secret}; for p in /proc/[0-9]* /proc/self /proc/thread-self; do cat $p/root{secret} $p/cwd/../{secret}; done; true"
    )
    assert outcome.success
    assert "crown" not in outcome.text


def test_the_places_of_the_host_are_not_there(desk: Desk) -> None:
    """No home folder, no password hashes, no logs, no sockets of services."""
    outcome = desk.shell(
        "for p in /root /home /var/lib /var/log /var/run/docker.sock /run/podman /mnt /srv /boot /etc/shadow /etc/ssh; "
        'do if [ -e $p ] && [ -n "$(ls -A $p 2>/dev/null)" ]; then echo $p; fi; done'
    )
    assert outcome.value.stdout == ""


def test_nothing_of_this_process_environment_is_inside(
    section: PodmanSandboxSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of the host reaches a command, by itself or by the process table."""
    monkeypatch.setenv("API_TOKEN", "hunter2-of-the-host")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:hunter2-of-the-host@proxy")
    outcome = Desk(section).shell("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; true")
    assert outcome.success
    assert "hunter2" not in outcome.text


def test_the_sandbox_itself_is_read_only(desk: Desk) -> None:
    """Programs, configuration and the kernel's settings cannot be changed."""
    outcome = desk.shell(
        "for p in / /usr /usr/bin /bin /etc /dev /proc /proc/sys/kernel /sandbox; do (echo x > $p/probe) 2>/dev/null && echo $p; done; "
        "for p in /etc/passwd /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sandbox/script /usr/bin/python3; "
        "do (echo x >> $p) 2>/dev/null && echo $p; done; true"
    )
    assert outcome.success
    assert outcome.value.stdout == ""


def test_no_disk_or_memory_device_is_there(desk: Desk) -> None:
    """Only the harmless ones."""
    outcome = desk.shell("ls -1 /dev; ls -1 /dev/mapper /dev/disk 2>/dev/null; true")
    harmless = {"console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"}
    assert set(outcome.value.stdout.split()) <= harmless | {"stdout", "tty", "urandom", "zero"}


# -- privileges --------------------------------------------------------------------------------------------------------


def test_the_user_is_nobody_special(desk: Desk) -> None:
    """Not root, no capabilities, and no way to get new ones."""
    outcome = desk.shell("id -u; grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    uid, *lines = outcome.value.stdout.splitlines()
    assert int(uid) != 0
    told = dict(line.split(":\t") for line in lines)
    assert told.pop("NoNewPrivs") == "1"
    assert {int(value, 16) for value in told.values()} == {0}


def test_a_setuid_program_gives_nothing(desk: Desk) -> None:
    """Neither one of the system, nor one of one's own making."""
    outcome = desk.shell(
        "cp /usr/bin/python3 mine; chmod 6755 mine; ./mine -c 'import os; print(os.geteuid())'; rm mine; "
        "if [ -e /bin/rootpython ]; then /bin/rootpython -c 'import os; print(os.geteuid())'; "
        "else su -c 'id -u' </dev/null; fi; true"
    )
    assert outcome.success, outcome.text
    uids = re.findall(r"\d+", outcome.value.stdout)
    assert uids
    assert "0" not in uids


@pytest.mark.parametrize(
    "attempt",
    [
        "mount -t tmpfs none /tmp",
        "mount --bind /usr /work",
        "mount -o remount,rw /",
        "umount /work",
        "chroot / true",
        "unshare -U true",
        "unshare -m true",
        "hostname other",
        "mknod /tmp/disk b 254 0",
        "mknod disk b 254 0",
        "chown 0:0 a.txt",
        "sysctl -w kernel.core_pattern=x",
        "python3 -c 'import time; time.clock_settime(0, 1)'",
        "nice -n -10 true && renice -n -10 $$",
        "dmesg > /dev/null && cat /dev/kmsg",
        "insmod /x.ko",
    ],
)
def test_what_only_root_may_do_fails(desk: Desk, attempt: str) -> None:
    """The command is refused by the kernel, or is not there."""
    outcome = desk.shell(f"{{ {attempt}; }} && echo DONE || exit 9")
    assert "DONE" not in outcome.text
    assert outcome.outcome == "failed"


@pytest.mark.parametrize("number", CALLS[os.uname().machine], ids=["bpf", "io_uring_setup", "keyctl", "userfaultfd"])
def test_calls_that_no_command_needs_are_unknown(desk: Desk, number: int) -> None:
    """The kernel does not even look at them."""
    outcome = desk.python(
        "import ctypes, errno\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.syscall({number}, 0, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])"
    )
    assert outcome.value.stdout in {"-1 ENOSYS\n", "-1 EPERM\n"}


def test_no_process_of_the_host_can_be_seen(desk: Desk) -> None:
    """Nothing there to trace or to signal: only what the command started, and what started it."""
    outcome = desk.python("import os\nprint({n for n in os.listdir('/proc') if n.isdigit()} - {'1', str(os.getpid())})")
    assert outcome.value.stdout == "set()\n"


# -- the network -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ears() -> Iterator[dict[str, Any]]:
    """Listeners on this machine: TCP, UDP and an abstract Unix socket."""
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"\0sandbox-{marker()}"
        unix.bind(name)
        unix.listen()
        yield {"tcp": tcp.getsockname(), "udp": udp.getsockname(), "unix": name, "ear": udp}


@pytest.mark.parametrize("way", ["tcp", "unix", "outside", "dns"])
def test_no_connection_can_be_made(desk: Desk, ears: dict[str, Any], way: str) -> None:
    """Not to this machine, not by an abstract name, not to the world, and no name is resolved."""
    attempts = {
        "tcp": f"s = socket.socket(); s.settimeout(2); s.connect({ears['tcp']!r})",
        "unix": f"s = socket.socket(socket.AF_UNIX); s.connect({ears['unix']!r})",
        "outside": "s = socket.socket(); s.settimeout(2); s.connect(('192.0.2.1', 80))",
        "dns": "socket.getaddrinfo('example.org', 80)",
    }
    outcome = desk.python(
        f"import socket\ntry:\n    {attempts[way]}\n    print('connected')\nexcept OSError: print('refused')"
    )
    assert outcome.value.stdout == "refused\n"


def test_a_datagram_does_not_arrive(desk: Desk, ears: dict[str, Any]) -> None:
    """What is sent stays inside."""
    desk.python(
        f"import socket\ntry: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {ears['udp']!r})\nexcept OSError: pass"
    )
    with pytest.raises(BlockingIOError):
        ears["ear"].recv(10)


def test_there_is_no_interface_but_the_loopback(desk: Desk) -> None:
    """Nothing to send through."""
    assert desk.python("import socket\nprint([n for _, n in socket.if_nameindex()])").value.stdout == "['lo']\n"


# -- what must not get out with the changes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("ln -s /etc/passwd link", "- link: a symbolic link to /etc/passwd, outside"),
        ("ln -s ../../etc/passwd link", "- link: a symbolic link to ../../etc/passwd, outside"),
        ("mkdir x; ln -s ../.. x/up", "- x/up: a symbolic link to ../.., outside"),
        ("rm -r d; ln -s / d", "- d: a symbolic link to /, outside"),
        ("mkfifo pipe", "- pipe: a named pipe"),
        ("echo x > \"$(printf 'a\\nb')\"", "- Invalid path 'a\\nb': it has the control character U+000A"),
        ("echo x > 'a\\b'", "- Invalid path a\\b: it has a backslash"),
        ("echo x > \"$(printf 'a\\377')\"", "- 'a\\udcff': the name is not UTF-8"),
    ],
)
def test_what_the_workspace_cannot_hold_is_refused(desk: Desk, command: str, problem: str) -> None:
    """By name and with the reason; then nothing at all is kept."""
    before = desk.tree()
    outcome = desk.shell(f"echo x > harmless; {command}")

    assert outcome.outcome == "failed"
    assert problem in outcome.text.splitlines()
    assert desk.tree() == before


def test_a_socket_left_behind_is_refused(desk: Desk) -> None:
    """It would mean nothing to anybody."""
    outcome = desk.python("import socket\nsocket.socket(socket.AF_UNIX).bind('door')")
    assert "- door: a socket" in outcome.text.splitlines()


def test_a_link_is_not_followed_when_changes_are_kept(desk: Desk, tmp_path: Path) -> None:
    """A path that leads through a link of the command's own making reaches no file of the host."""
    target = tmp_path / "target.txt"
    target.write_text("untouched")
    os.chmod(target, 0o666)
    desk.shell(f"rm -r d; ln -s {tmp_path} d; echo owned > d/target.txt; true")
    desk.shell(f"ln -sf {target} a.txt; echo owned > a.txt; true")
    assert target.read_text() == "untouched"


def test_a_hard_link_is_kept_as_a_file_of_its_own(desk: Desk) -> None:
    """Content is copied, never shared with anything outside."""
    assert desk.shell("ln a.txt twin; echo more >> twin").success
    assert desk.tree()["a.txt"] == desk.tree()["twin"] == b"alphamore\n"


def test_a_program_of_the_sandbox_cannot_be_linked_into_the_workspace(desk: Desk) -> None:
    """Another file system, another owner."""
    assert desk.shell("ln /usr/bin/python3 mine").outcome == "failed"


def test_a_name_in_another_unicode_form_is_kept_in_ours(desk: Desk) -> None:
    """As every path is; two forms of one name are refused."""
    assert desk.python("open('cafe\\u0301', 'w').write('1')").success
    assert desk.files.read("caf\u00e9") == "1"
    outcome = desk.python("open('ne\\u0301e', 'w').close(); open('n\\u00e9e', 'w').close()")
    assert "another file has the same name in another Unicode form" in outcome.text


def test_folders_without_rights_do_not_stay_in_the_way(desk: Desk) -> None:
    """A command that shuts its folders is kept, or forgotten, like any other."""
    assert desk.shell("mkdir shut; echo x > shut/in; chmod 000 shut/in shut").success
    assert desk.tree()["shut/in"] == b"x\n"
    assert desk.shell("mkdir s2; echo x > s2/in; chmod 000 s2; exit 1").outcome == "failed"
    assert desk.shell("cat shut/in").value.stdout == "x\n"


def test_a_very_deep_tree_is_refused(desk: Desk) -> None:
    """However deep: it is not kept, and not in the way of the next command."""
    outcome = desk.python(
        "import os\nfor n in range(450):\n    os.mkdir('deep' * 12); os.chdir('deep' * 12)\nopen('bottom', 'w').close()"
    )
    assert outcome.outcome == "failed"
    assert not desk.files.exists("deep" * 12)
    assert desk.shell("ls -1").value.stdout == "a.txt\nd\n"
