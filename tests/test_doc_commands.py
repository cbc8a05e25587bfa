"""What the documents tell people to type is typed.

A session stands in a block ```console: lines that begin with `$ ` are run in a folder with `examples` in it, the others
must be lines of the output, in this order, whatever blanks stand between their words. Commands without their output
stand in a block ```sh. Each is run against a router on real llama.cpp with the models that the documents speak of, or
against `examples/crash-log`; addresses, numbers and files that nobody has are replaced by what is there (INSTEAD).
What cannot run here says why, and where else it is tried (ELSEWHERE). A program that none of this knows is a failure.
"""

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from router.cli import main
from tests.mortal import mortal
from tests.real_router import RealRouter
from tests.standin.client import Call
from tests.standin.fixtures import body_for
from tests.tiny_gguf import write_tiny_gguf

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/README*"), *ROOT.glob("*/*/README.md")]
)
CRASH_LOG = "examples/crash-log"

DATA = {"", "ini", "json", "yaml", "nix"}
"""Languages of blocks that hold no commands."""


# --- what there is --------------------------------------------------------------------------------------------------


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL)


def sessions() -> list[tuple[str, str, list[str]]]:
    """(page, command, lines shown)."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console"):
            for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *shown = piece.rstrip("\n").split("\n")
                found.append((page.name, command, shown))
    return found


def commands(page: Path) -> list[str]:
    """Of the blocks without output: lines joined where they go on, remarks taken off."""
    joined = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return list(filter(None, (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in joined.splitlines())))


def test_there_are_sessions_and_commands_to_look_at() -> None:
    assert len(sessions()) > 8
    assert sum(len(commands(page)) for page in PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_hides_in_a_block_of_another_kind(page: Path) -> None:
    """Only `sh` and `console` hold what is to be typed; what is indented, and every other language, is data."""
    text = page.read_text()
    assert set(re.findall(r"^ *```(\w*)\n.*?^ *```", text, re.MULTILINE | re.DOTALL)) <= {"sh", "console", *DATA}
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    programs = r"llama-router|curl|make|docker|sudo|pip|python3?|scripts/\S+|llama-server|systemctl|nix"
    assert not re.findall(rf"^ {{4}}(?:\$ )?(?:{programs}) .*$", outside, re.MULTILINE)


# --- sessions -------------------------------------------------------------------------------------------------------


def typed(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """`llama-router` with these arguments, typed in this folder: its exit code and what it prints."""
    before = dict(os.environ)
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    try:
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        with chdir(folder), redirect_stdout(said), redirect_stderr(said):
            try:
                code = main(arguments)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
    finally:
        os.environ.clear()
        os.environ.update(before)
        time.tzset()
    said.seek(0)
    return code, said.read()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a reader has it: the project's examples and scripts, and the files that the documents speak of."""
    folder = tmp_path_factory.mktemp("desk")
    for name in ("examples", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("page", "command", "shown"), sessions(), ids=lambda value: str(value)[:60])
def test_a_session_goes_as_its_page_shows_it(desk: Path, page: str, command: str, shown: list[str]) -> None:
    program, *arguments = shlex.split(command)
    assert program == "llama-router"
    code, said = typed(arguments, desk, {**os.environ, "TZ": "UTC"})
    assert code == 0, said
    printed = iter([" ".join(line.split()) for line in said.splitlines()])
    for line in shown:
        assert " ".join(line.split()) in printed, f"{page} shows, and the command does not print here: {line}"


# --- commands -------------------------------------------------------------------------------------------------------

ELSEWHERE: Mapping[str, tuple[str, str]] = {
    r"make (setup|check|test|pythons)\b": (".ci/run", "make"),
    r"make demo\b": ("tests/weights/test_demo.py", "demo"),
    r"make (test-all-pythons|bench|lock)\b": ("Makefile", "test-all-pythons"),
    r"sudo python3 -m venv |sudo \S+/pip install \.": ("tests/deploy/test_docker.py", "venv"),
    r"python3 -m venv |~/llama-router/bin/pip install ": ("tests/deploy/test_docker.py", "venv"),
    r"sudo systemctl |sudo chown ": ("docs/deploy.md", "Not run so far"),
    r"docker compose ": ("docs/deploy.md", "Not run so far"),
    r"claude ": ("docs/clients.md", "not run"),
}
"""Commands that take too long here, or need systemd or Docker: the file that tries them or says that nobody did, and a
word in it."""

WATCHES = r"--watch|tail -f|logs .* -f"
"""Commands that go on until they are interrupted."""

INSTEAD: Mapping[str, str] = {
    r"(127\.0\.0\.1|localhost):11434": "127.0.0.1:{port}",
    r"11434 8080": "{port} {port}",
    r"--instance-url \S+": "",
    r"(benchmark-concurrency\S* .*)-n 100": r"\1-n 6 --tokens 4 --model qwen3-8b --model gemma-12b",
    r"(benchmark-throughput\S*.*)": r"\1 --model qwen3-8b --prompt-tokens 50 --answer-tokens 8 --rounds 1",
    r"(benchmark-prompt-cache\S* .*)": r"\1 --instance-url http://127.0.0.1:{port} --sentences 4 --conversations 2",
    r"cancel 4711": "cancel {rid}",
    r"--request 4711": "--request 4",
    r"--swap 12": "--swap 3",
    r"--crash 3": "--crash 2",
    r"'#48211'": "'#73'",
    r"2026-03-01T03:14": "2026-11-30T17:36:16",
    r"sudo (install .*-t )(/etc/)": r"\1{desk}\2",
    r"sudo EVENT_LOG_DIR=\S+ \S+/llama-router": "llama-router",
    r"AzureLLMInferenceTrace_2023_code.csv": "examples/traces/azure-code.csv",
    r"AzureLLMInferenceTrace_2023_conv.csv": "examples/traces/azure-conv.csv",
    r"--keep-every \d+": "--keep-every 4",
    r"simulate (LOG|log) ": "simulate {log} ",
}
"""What nobody has, by what is at hand; and sizes for a test."""

ON_THE_CRASH = ("what-happened.md",)
"""Pages whose commands are about `examples/crash-log`; all others are about the router of this test."""

MODELS = ("qwen3-8b", "qwen3-4b", "qwen3-coder", "gemma-26b", "gemma-4-26b", "gemma-12b")
SWAP = """
models:
  small:
    cmd: llama-server -m {weights} -c 4096 --port ${{PORT}}
"""


class World:
    """A router that has served a little, and a folder to type in."""

    def __init__(self, router: RealRouter, desk: Path) -> None:
        self.router = router
        self.desk = desk
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**router.env, "HOME": str(desk), "TZ": "UTC", "PATH": programs}
        self.environment["LLAMA_ROUTER_URL"] = router.base_url

    def run(self, page: str, command: str) -> None:
        told = self.replaced(command)
        environment = self.environment
        if page in ON_THE_CRASH:
            environment = {**environment, "EVENT_LOG_DIR": str(self.desk / "log")}
        if re.search(WATCHES, told):
            self.watch(told, environment)
            return
        if told.startswith("llama-router ") and not re.search(r"[|;~]|>|&&", told):
            code, said = typed(shlex.split(told)[1:], self.desk, environment)
        else:
            done = subprocess.run(
                ["bash", "-euc", told],
                cwd=self.desk,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            code, said = done.returncode, done.stdout
        assert code == 0, f"{page} says: {command}\nrun as: {told}\nexit code {code}:\n{said[-3000:]}"
        if "gpu out 1" in told:
            typed(["gpu", "in", "1"], self.desk, environment)

    def replaced(self, command: str) -> str:
        if "cancel 4711" in command:
            self.begin("qwen3-8b")
        for old, new in INSTEAD.items():
            command = re.sub(old, new, command)
        last = max((event["rid"] for event in self.router.events("RequestArrived")), default=0)
        there = {"port": self.router.port, "rid": last, "desk": self.desk, "log": self.router.log_dir}
        return re.sub(
            r"\{(port|rid|desk|log)\}",
            lambda found: str(there[found[1]]),
            command,
        )

    def begin(self, model: str) -> Call:
        """A stream that does not end by itself before it is cancelled."""
        body = body_for("/v1/chat/completions", model)
        call = self.router.call("POST", "/v1/chat/completions", {**body, "stream": True, "ignore_eos": True})
        assert call.status == 200, call.read()
        next(call.frames())
        return call

    def watch(self, command: str, environment: Mapping[str, str]) -> None:
        """Until it has printed something; then interrupted, as by a person."""
        with subprocess.Popen(
            mortal(shlex.split(command)), cwd=self.desk, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline(), command
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(10) in (0, 130)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, desk: Path) -> Iterator[World]:
    folder = Path(tmp_path_factory.mktemp("r"))
    weights = write_tiny_gguf(folder / "tiny.gguf", context=4096)
    shutil.copytree(ROOT / CRASH_LOG, desk / "log")
    for name in ("code", "conv"):
        (desk / f"{name}.csv").symlink_to(ROOT / "examples" / "traces" / f"azure-{name}.csv")
    (desk / "config.yaml").write_text(SWAP.format(weights=weights))
    (desk / "mooncake_conversation_trace.jsonl").write_text(mooncake())
    (desk / "docker-compose.override.yml.example").symlink_to(ROOT / "docker-compose.override.yml.example")
    profiles = {"coding": {"pins": {"best": "qwen3-coder", "fast": "qwen3-4b", "image": None}}}
    models = {name: {"gpus": [int(name == "gemma-12b")]} for name in MODELS}
    settings = {"NUM_GPUS": 2, "DASHBOARD": True, "QUEUE_HEAD_GRACE": 0}
    with RealRouter(folder, weights, models, settings, top={"profiles": profiles}) as router:
        for name in ("qwen3-8b", "gemma-12b", "qwen3-4b", "qwen3-8b"):
            assert router.asks(name, max_tokens=8) == 200
        yield World(router, desk)


def mooncake() -> str:
    """Sixty requests of thirty sessions in the form of that trace."""
    lines = []
    for turn in range(2):
        for session in range(30):
            blocks = [session * 10 + block for block in range(2 + turn)]
            at = turn * 60_000 + session * 2_000
            lines.append(
                f'{{"timestamp": {at}, "input_length": {512 * len(blocks)}, "output_length": 40, "hash_ids": {blocks}}}'
            )
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_commands_of_a_page_do_what_they_say(world: World, page: Path) -> None:
    """In their order, in one folder, each with exit code 0; or somewhere else that is named."""
    for command in commands(page):
        where = next((where for pattern, where in ELSEWHERE.items() if re.match(pattern, command)), None)
        if where is None:
            world.run(page.name, command)
        else:
            file, word = where
            assert word in (ROOT / file).read_text(), f"{command!r} is not tried in {file}"
