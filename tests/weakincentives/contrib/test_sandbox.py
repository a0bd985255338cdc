"""Claims of the sandbox that need no sandbox: its configuration, its words, its folders, and what it makes of changes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from weakincentives.contrib.sandbox import (
    ChangesRefusedError,
    Job,
    PodmanConfig,
    SandboxError,
    SandboxUnavailableError,
    Workspace,
    choose_backend,
)
from weakincentives.contrib.sandbox.backend import Started
from weakincentives.contrib.sandbox.changes import apply_changes, read_changes
from weakincentives.contrib.sandbox.folder import measure, remove_folder
from weakincentives.contrib.tools.podman import CommandResult, PodmanSandboxSection, ShellParams
from weakincentives.errors import PromptValidationError, ToolValidationError
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import Prompt, PromptTemplate
from weakincentives.runtime import Session, ToolCall, ToolInvoked, ToolOutcome, execute_tool
from weakincentives.testing import make_context

# -- a backend that confines nothing -----------------------------------------------------------------------------------


class Unconfined(Started):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()

    def exit_code(self, stderr: str) -> int:
        return self.process.returncode

    def close(self) -> None:
        pass


class UnconfinedBackend:
    """Runs the script in the upper folder itself: what it writes there is what it changed."""

    name = "unconfined"
    owner = None

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def find(self) -> None:
        pass

    def start(self, job: Job) -> Started:
        self.jobs.append(job)
        pipe = subprocess.PIPE
        argv = [job.script if word == "/sandbox/script" else word for word in job.argv]
        return Unconfined(
            subprocess.Popen(argv, cwd=job.upper, env=dict(job.env), stdin=pipe, stdout=pipe, stderr=pipe)
        )


class BrokenBackend(UnconfinedBackend):
    def start(self, job: Job) -> Started:
        raise SandboxError("Podman could not run the command: no space left on device")


@pytest.fixture
def backend() -> UnconfinedBackend:
    return UnconfinedBackend()


@pytest.fixture
def files() -> InMemoryFilesystem:
    return InMemoryFilesystem({"a.txt": "alpha", "d/b.txt": "beta"})


def call(
    name: str, arguments: dict[str, Any], files: Filesystem | None, session: Session | None = None, **options: Any
) -> ToolOutcome:
    options.setdefault("backend", UnconfinedBackend())
    section = PodmanSandboxSection(**options)
    prompt = Prompt(PromptTemplate(sections=[section])).bind(resources={} if files is None else {Filesystem: files})
    return execute_tool(ToolCall(name, arguments), prompt=prompt, session=session or Session())


def shell(command: str, files: Filesystem | None = None, /, *, arguments: dict[str, Any] | None = None, **options: Any):
    return call("shell_execute", {"command": command, **(arguments or {})}, files, **options)


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "docker"}, "backend must be one of: auto, podman, bubblewrap, got 'docker'."),
        ({"memory": 0}, "memory must be an integer above 0, got 0."),
        ({"uid": 0}, "uid must be an integer above 0, got 0."),
        ({"pids": True}, "pids must be an integer above 0, got True."),
        ({"timeout": float("nan")}, "timeout must be a number above 0, got nan."),
        ({"cpus": "2"}, "cpus must be a number above 0, got '2'."),
        ({"workdir": "work"}, "workdir must be an absolute path of plain names, such as /work, got 'work'."),
        ({"workdir": "/a/../b"}, "workdir must be an absolute path of plain names, such as /work, got '/a/../b'."),
        (
            {"workdir": "/tmp/x"},
            "workdir must be a path outside of /bin, /dev, /etc, /lib, /lib64, /proc, /sandbox, /sbin, /sys, /tmp, /usr, got '/tmp/x'.",
        ),
        ({"env": {"A B": "1"}}, "env must be names of letters, digits and _, and values without NUL, got 'A B'."),
        ({"image": "--privileged"}, "image must be the name of an image, got '--privileged'."),
    ],
)
def test_a_wrong_configuration_is_refused_when_it_is_made(options: dict[str, Any], message: str) -> None:
    """Each field says what it takes."""
    with pytest.raises(PromptValidationError) as refused:
        PodmanConfig(**options)
    assert str(refused.value) == f"PodmanConfig: {message}"


def test_a_missing_podman_is_told_in_one_sentence() -> None:
    """What is missing, and what to do."""
    with pytest.raises(SandboxUnavailableError) as told:
        choose_backend(PodmanConfig(backend="podman", engine="podman-that-is-not-there"))
    assert str(told.value) == (
        "Podman cannot run here: the program podman-that-is-not-there was not found. "
        "Install it (apt-get install podman), or use backend='bubblewrap'."
    )


def test_a_missing_engine_config_is_told() -> None:
    """Before anything is run."""
    with pytest.raises(SandboxUnavailableError) as told:
        choose_backend(PodmanConfig(backend="podman", engine="true", engine_config="/not/there.conf"))
    assert str(told.value) == (
        "Podman cannot run here: engine_config /not/there.conf is no file. Name a containers.conf file."
    )


def test_a_missing_image_is_told_and_not_pulled(tmp_path: Path) -> None:
    """The sentence says how to fetch it."""
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\nexit 1\n")
    podman.chmod(0o755)
    with pytest.raises(SandboxUnavailableError) as told:
        choose_backend(PodmanConfig(backend="podman", engine=str(podman), image="localhost/none"))
    assert str(told.value) == (
        "Podman cannot run here: the image localhost/none is not on this machine. "
        "Fetch it (podman pull localhost/none), or use backend='bubblewrap'."
    )


def test_a_podman_that_fails_gives_its_own_reason(tmp_path: Path) -> None:
    """The last line of what it said."""
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\necho 'Error: cannot set up namespace.' >&2; exit 125\n")
    podman.chmod(0o755)
    with pytest.raises(SandboxUnavailableError) as told:
        choose_backend(PodmanConfig(backend="podman", engine=str(podman)))
    assert str(told.value) == (
        "Podman cannot run here: cannot set up namespace. Repair it, or use backend='bubblewrap'."
    )


def test_a_podman_that_cannot_start_a_container_gives_its_own_reason(tmp_path: Path) -> None:
    """An image is not enough: a first command is run."""
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\n[ $1 = image ] || { echo 'Error: crun: no cgroup.' >&2; exit 126; }\n")
    podman.chmod(0o755)
    with pytest.raises(SandboxUnavailableError) as told:
        choose_backend(PodmanConfig(backend="podman", engine=str(podman)))
    assert str(told.value) == ("Podman cannot run here: crun: no cgroup. Repair it, or use backend='bubblewrap'.")


def test_where_neither_runs_both_reasons_are_told() -> None:
    """One sentence for each, and no advice to use the other."""
    config = PodmanConfig(engine="podman-that-is-not-there", rootfs="/not/there")
    with pytest.raises(SandboxUnavailableError) as told:
        PodmanSandboxSection(config=config)
    assert str(told.value) == (
        "No sandbox can run here. Podman cannot run here: the program podman-that-is-not-there was not found. "
        "Install it (apt-get install podman). bubblewrap cannot run here: rootfs /not/there is no directory. "
        "Unpack an image there, or leave rootfs out."
    )


# -- what the model reads ----------------------------------------------------------------------------------------------


def test_a_success_tells_what_changed_and_what_was_printed(files: InMemoryFilesystem) -> None:
    """Message first, then both streams."""
    outcome = shell("echo out; echo err >&2; echo x > new; mkdir -p p/q", files)
    assert outcome.text == "Exit code 0. Changed: new, p, p/q\n\nstdout:\nout\nstderr:\nerr"
    assert files.read("new") == "x\n"


def test_many_changes_are_counted(files: InMemoryFilesystem) -> None:
    """Twenty names are enough."""
    outcome = shell("for n in $(seq 10 34); do : > f$n; done", files)
    assert outcome.message.endswith("f28, f29 and 5 more")


def test_silence_is_told(files: InMemoryFilesystem) -> None:
    """A model is not left to wonder."""
    assert shell("true", files).text == "Exit code 0.\n\n(no output)"


def test_a_failure_has_code_and_both_streams_and_keeps_nothing(files: InMemoryFilesystem) -> None:
    """And the event has the typed value."""
    session = Session()
    outcome = shell("echo out; echo err >&2; echo x > new; exit 7", files, session=session)
    assert outcome.text == "Exit code 7. Nothing the command changed was kept.\n\nstdout:\nout\nstderr:\nerr"
    assert not files.exists("new")
    event = session[ToolInvoked].latest()
    assert event is not None
    assert isinstance(event.result.value, CommandResult)
    assert (event.outcome, event.result.value.exit_code) == ("failed", 7)


def test_a_change_that_the_filesystem_refuses_fails_the_call() -> None:
    """In its own words, with what the command printed, and without the other changes."""
    files = InMemoryFilesystem({"keep.lock": "locked"}, readonly="*.lock")
    assert shell("echo out; echo x > new; echo x > keep.lock", files).text == (
        "The command succeeded, but nothing it changed was kept, because of this: Cannot change keep.lock: it is read-only\n"
        "Copy it to another path and work on the copy.\n\nstdout:\nout"
    )
    assert (files.list(), files.read("keep.lock")) == (["keep.lock"], "locked")


def test_exit_code_137_says_what_it_probably_means(files: InMemoryFilesystem) -> None:
    """The kernel gives no other reason."""
    assert shell("exit 137", files).text == (
        "Exit code 137: killed, most likely for using more than 512 MiB of memory. "
        "Nothing the command changed was kept.\n\n(no output)"
    )


def test_a_timeout_says_how_long_was_allowed(files: InMemoryFilesystem) -> None:
    """With the longest time already given, there is only less work."""
    outcome = shell("exec sleep 100", files, config=PodmanConfig(timeout=0.2))
    assert outcome.text == (
        "Killed: the command was not done within 0.2 seconds. Nothing it changed was kept.\n"
        "Retry with less work at once.\n\n(no output)"
    )


@pytest.mark.parametrize("asked", [0, -1, 61])
def test_a_timeout_beyond_the_limit_is_refused(files: InMemoryFilesystem, asked: float) -> None:
    """It is not quietly made shorter."""
    outcome = shell("true", files, arguments={"timeout": asked})
    assert outcome.text == f"timeout must be above 0 and at most 60 seconds, got {asked}."


def test_nothing_to_run_is_refused(files: InMemoryFilesystem) -> None:
    """Before a sandbox is made."""
    assert shell(" \n", files).text == ("There is nothing to run: the text is empty. Write a command, then retry.")


def test_a_directory_that_is_not_there_is_told(files: InMemoryFilesystem) -> None:
    """In the words of the filesystem."""
    assert shell("true", files, arguments={"cwd": "none"}).text.startswith("Directory not found: none\n")
    assert shell("true", files, arguments={"cwd": "a.txt"}).text.startswith("Not a directory: a.txt is a file\n")
    assert shell("true", files, arguments={"cwd": "../x"}).text.startswith("Path leads outside: ../x\n")


def test_a_directory_may_be_named_as_the_command_sees_it(files: InMemoryFilesystem, backend: UnconfinedBackend) -> None:
    """Both spellings mean the same place."""
    for cwd in ("d", "/d", "/work/d", "/work/d/", "/work", "/", "."):
        assert shell("true", files, arguments={"cwd": cwd}, backend=backend).success
    assert [job.cwd for job in backend.jobs] == ["/work/d"] * 4 + ["/work"] * 3


def test_too_many_files_are_refused_also_after_a_quick_end(files: InMemoryFilesystem) -> None:
    """The last look counts, however fast the command was."""
    outcome = shell("for n in 1 2 3 4 5; do : > $n; done", files, config=PodmanConfig(entries=3))
    assert outcome.text.startswith(
        "Killed: the command changed more than 3 files and directories. Nothing it changed was kept.\n"
        "Retry with fewer files at once."
    )


def test_too_many_bytes_are_refused(files: InMemoryFilesystem) -> None:
    """A hole counts with its length."""
    outcome = shell("truncate -s 1G big", files, config=PodmanConfig(disk=1024 * 1024))
    assert outcome.text.startswith(
        "Killed: the command wrote more than 1 MiB. Nothing it changed was kept.\n"
        "Retry with smaller files, or write to /tmp what need not stay."
    )


def test_a_broken_sandbox_is_an_internal_error(files: InMemoryFilesystem) -> None:
    """It is not the model's fault, and it is not told that it was."""
    outcome = shell("true", files, backend=BrokenBackend())
    assert outcome.text == "Internal error: Podman could not run the command: no space left on device"


class Impatient:
    """A heartbeat that somebody interrupts."""

    def beat(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_command_is_killed(files: InMemoryFilesystem) -> None:
    """Whatever ends the waiting ends the command."""
    started: list[Started] = []

    class Noting(UnconfinedBackend):
        def start(self, job: Job) -> Started:
            started.append(super().start(job))
            return started[0]

    handler: Any = PodmanSandboxSection(backend=Noting()).tools[0].handler
    context = make_context(fs=files, heartbeat=cast("Any", Impatient()))
    with pytest.raises(KeyboardInterrupt):
        handler(ShellParams("exec sleep 1000"), context=context)
    assert started[0].process.returncode == -9


class NestedBackend(UnconfinedBackend):
    """Starts a second command over the same files before the first one."""

    def __init__(self, files: Filesystem) -> None:
        super().__init__()
        self.section = PodmanSandboxSection(backend=self)
        self.context = make_context(fs=files)
        self.told = ""

    def start(self, job: Job) -> Started:
        handler: Any = self.section.tools[0].handler
        try:
            handler(ShellParams("true", timeout=0.1), context=self.context)
        except ToolValidationError as error:
            self.told = str(error)
        return super().start(job)


def test_a_second_command_on_the_same_files_waits_its_time(files: InMemoryFilesystem) -> None:
    """Then it is told to come back; the first one is not disturbed."""
    nested = NestedBackend(files)
    handler: Any = nested.section.tools[0].handler
    assert handler(ShellParams("echo done"), context=nested.context).value.stdout == "done\n"
    assert nested.told == "Another command is using this workspace, and was not done in time. Retry when it is done."


def test_output_is_cut_in_the_middle_between_characters(files: InMemoryFilesystem) -> None:
    """Nothing of a character that the cut went through is shown."""
    outcome = shell("printf 'ääääääääää'", files, config=PodmanConfig(output_limit=10))
    assert outcome.value.stdout == "ää\n[... 10 bytes cut ...]\nää"
    assert (outcome.value.stdout_truncated, outcome.value.stderr_truncated) == (True, False)


def test_bytes_that_are_no_text_are_shown_as_such(files: InMemoryFilesystem) -> None:
    """Output is never a reason to fail."""
    assert shell("printf 'a\\377b'", files).value.stdout == "a\ufffdb"


def test_input_larger_than_a_pipe_arrives_and_unread_input_is_no_error(files: InMemoryFilesystem) -> None:
    """The command decides how much it reads."""
    text = "x" * 300_000
    assert shell("wc -c", files, arguments={"stdin": text}).value.stdout.strip() == "300000"
    assert shell("exit 0", files, arguments={"stdin": text}).success


def test_the_environment_is_clean(backend: UnconfinedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command gets our few variables and the owner's, and nothing of this process."""
    monkeypatch.setenv("API_TOKEN", "secret")
    shell("true", None, backend=backend, config=PodmanConfig(env={"A": "1", "HOME": "/work"}))
    assert dict(backend.jobs[0].env) == {
        "A": "1",
        "HOME": "/work",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": "/tmp",
    }


def test_a_prompt_without_files_works_on_the_sections_own(backend: UnconfinedBackend) -> None:
    """The section can be tried alone."""
    section = PodmanSandboxSection(backend=backend)
    prompt = Prompt(PromptTemplate(sections=[section]))
    assert execute_tool(
        ToolCall("shell_execute", {"command": "echo x > new"}), prompt=prompt, session=Session()
    ).success
    assert section.filesystem.read("new") == "x\n"


def test_a_filesystem_given_to_the_section_is_bound(files: InMemoryFilesystem, backend: UnconfinedBackend) -> None:
    """Other tools of the prompt find the same files."""
    section = PodmanSandboxSection(backend=backend, filesystem=files)
    prompt = Prompt(PromptTemplate(sections=[section]))
    assert prompt.resources.get(Filesystem) is files


def test_the_prompt_tells_the_rules(backend: UnconfinedBackend) -> None:
    """Where the files are, what lasts, and what the limits are."""
    section = PodmanSandboxSection(backend=backend, config=PodmanConfig(timeout=30, workdir="/srv/code"))
    text = Prompt(PromptTemplate(sections=[section])).render().text
    assert "The workspace is at /srv/code, where commands start" in text
    assert "Changes are kept when the command exits with 0." in text
    assert "There is no network, and nothing can be installed." in text
    assert "Limits: 30 seconds, 512 MiB of memory, 256 MiB written." in text


# -- the copy of the workspace -----------------------------------------------------------------------------------------


def tree(folder: str) -> dict[str, bytes | None]:
    root = Path(folder)
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in sorted(root.rglob("*"))
    }


def test_the_copy_follows_the_filesystem(files: InMemoryFilesystem) -> None:
    """Files, directories, deletions and changes of kind."""
    workspace = Workspace(None)
    workspace.sync(files)
    assert tree(workspace.lower) == {"a.txt": b"alpha", "d": None, "d/b.txt": b"beta"}

    files.delete("d", recursive=True)
    files.write("d", "a file now")
    files.delete("a.txt")
    files.write("a.txt/in", "a directory now")
    files.mkdir("empty/deep")
    workspace.sync(files)
    assert tree(workspace.lower) == {
        "a.txt": None,
        "a.txt/in": b"a directory now",
        "d": b"a file now",
        "empty": None,
        "empty/deep": None,
    }


def test_only_what_changed_is_written_again(files: InMemoryFilesystem) -> None:
    """A second command costs what was written since the first."""
    workspace = Workspace(None)
    workspace.sync(files)
    before = {path: os.stat(os.path.join(workspace.lower, path)).st_ino for path in ("a.txt", "d/b.txt")}
    os.utime(os.path.join(workspace.lower, "a.txt"), ns=(1, 1))
    files.write("d/b.txt", "changed")
    files.write("a.txt", "alpha")
    workspace.sync(files)
    assert os.stat(os.path.join(workspace.lower, "a.txt")).st_mtime_ns == 1
    assert os.stat(os.path.join(workspace.lower, "a.txt")).st_ino == before["a.txt"]
    assert tree(workspace.lower)["d/b.txt"] == b"changed"


def test_the_folders_go_with_their_owner(files: InMemoryFilesystem) -> None:
    """Nothing stays on the disk."""
    workspace = Workspace(None)
    workspace.sync(files)
    with workspace.call("true") as folders:
        place = os.path.dirname(folders.upper)
        assert os.path.exists(folders.script)
    assert not os.path.exists(place)
    lower = workspace.lower
    del workspace
    assert not os.path.exists(lower)


def test_a_forked_child_leaves_its_parents_folders_alone() -> None:
    """Only who made them removes them."""
    workspace = Workspace(None)
    child = os.fork()
    if child == 0:
        lower = workspace.lower
        del workspace
        os._exit(0 if os.path.exists(lower) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.exists(workspace.lower)


def test_a_deep_and_shut_folder_is_removed(tmp_path: Path) -> None:
    """Neither its depth nor its modes can keep it."""
    top = tmp_path / "top"
    top.mkdir()
    deep = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("directory", dir_fd=deep)
        below = os.open("directory", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.symlink("/", "link", dir_fd=deep)
    os.close(deep)
    (top / "shut").mkdir()
    (top / "shut" / "file").touch()
    (top / "shut").chmod(0)
    assert measure(str(top))[1] > 10**6
    remove_folder(str(top))
    assert not top.exists()
    assert Path("/etc").exists()


# -- changes -----------------------------------------------------------------------------------------------------------


def test_a_link_inside_needs_a_filesystem_that_has_links(files: InMemoryFilesystem, tmp_path: Path) -> None:
    """Files in memory have none; the model is told what to do instead."""
    os.symlink("a.txt", tmp_path / "link")
    with pytest.raises(ChangesRefusedError) as refused:
        apply_changes(read_changes(str(tmp_path), "/work"), files)
    assert str(refused.value) == (
        "The command succeeded, but nothing it changed was kept, because the workspace cannot hold:\n"
        "- link: a symbolic link to a.txt\n"
        "Remove, rename or copy them within the same command (or use /tmp), then retry."
    )


class LinkedFilesystem(InMemoryFilesystem):
    """Files in memory that note links and modes."""

    def __init__(self) -> None:
        super().__init__({"d/x": "1"})
        self.links: dict[str, str] = {}
        self.modes: dict[str, int] = {}

    def symlink(self, path: str, target: str) -> None:
        self.links[path] = target

    def chmod(self, path: str, mode: int) -> None:
        self.modes[path] = mode


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        ("x", "x"),
        ("../a", "../a"),
        ("./y/../x", "./y/../x"),
        ("/work/d/x", "x"),
        ("/work/other", "../other"),
        ("/work", ".."),
        ("../../a", None),
        ("y/../../../a", None),
        ("/workshop", None),
        ("/etc/passwd", None),
        ("/work/../etc", None),
        ("/work/../work/d/x", None),
    ],
)
def test_a_link_is_kept_only_if_it_stays_inside(tmp_path: Path, target: str, kept: str | None) -> None:
    """An absolute one is kept relative; whatever climbs out, even on the way, is refused."""
    (tmp_path / "d").mkdir()
    os.symlink(target, tmp_path / "d" / "link")
    files = LinkedFilesystem()
    if kept is None:
        with pytest.raises(ChangesRefusedError, match="outside"):
            read_changes(str(tmp_path), "/work")
    else:
        apply_changes(read_changes(str(tmp_path), "/work"), files)
        assert files.links == {"d/link": kept}


def test_modes_are_kept_where_the_filesystem_has_them(tmp_path: Path) -> None:
    """A script that was made executable stays so; special bits are dropped."""
    (tmp_path / "run.sh").write_text("true")
    (tmp_path / "run.sh").chmod(0o4755)
    files = LinkedFilesystem()
    assert apply_changes(read_changes(str(tmp_path), "/work"), files) == ["run.sh"]
    assert files.modes == {"run.sh": 0o755}


def test_a_file_that_was_only_touched_is_not_a_change(files: InMemoryFilesystem, tmp_path: Path) -> None:
    """An overlay holds a copy of it all the same."""
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "d").mkdir()
    assert apply_changes(read_changes(str(tmp_path), "/work"), files) == []


def test_long_lists_of_problems_are_shortened(tmp_path: Path) -> None:
    """Ten are enough to understand."""
    for number in range(14):
        os.mkfifo(tmp_path / f"pipe{number:02}")
    with pytest.raises(ChangesRefusedError) as refused:
        read_changes(str(tmp_path), "/work")
    assert "- pipe09: a named pipe\n- and 4 more\n" in str(refused.value)
