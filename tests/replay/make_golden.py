"""Records the golden logs anew, on purpose: python -m tests.replay.make_golden [NAME ...]

A log of a schema or policy that has been released is never recorded again; a newer one is put beside it. Each is one
segment, `<schema>-<name>.ndjson.gz`, with its checkpoints in the middle, and has its digests in digests.json. The real
ones come from a router on stand-ins, with what tells of the machine replaced by names of nowhere.
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from eventlog.codec import SCHEMA, rechain
from eventlog.events import ConfigLoaded
from eventlog.segments import segment_name
from eventlog.settings import GroupSettings, MatrixSet, ModelSettings, SchedulerSettings
from replay.verify import Verified, verify
from tests.replay.recording import Line, Recording, all_in_turn, busy_hour, lines_of
from tests.scheduler.shell import SECOND
from tests.scheduler.world import Manners
from tests.standin.client import Call, CutShort
from tests.standin.fixtures import REPOSITORY, Model, RouterProcess

GOLDEN = Path(__file__).parent / "golden"
DIGESTS = GOLDEN / "digests.json"
ALTERED = "altered"
"""The one that must fail."""
SMALL_SEGMENTS = 16_384


def world_in_order(folder: Path) -> None:
    """Two models that take turns on one GPU, a third one beside them, with a grace; all goes well."""
    models = {"A": ModelSettings(gpus=(0,)), "B": ModelSettings(gpus=(0,)), "C": ModelSettings(gpus=(1,), replicas=2)}
    settings = SchedulerSettings(models=models, gpus=2, head_grace_us=5 * SECOND)
    with Recording(folder, settings, segment_bytes=SMALL_SEGMENTS, manners=Manners(service_s=(0.5, 3.0))) as world:
        busy_hour(world, 60)


def world_unruly(folder: Path) -> None:
    """Crashes, stalls, broken connections, failed loads, late timers, a model over two GPUs; two runs."""
    models = {
        "A": ModelSettings(gpus=(0,), replicas=2),
        "B": ModelSettings(gpus=(0, 1)),
        "C": ModelSettings(gpus=(1,), ttl_us=40 * SECOND),
    }
    settings = SchedulerSettings(models=models, gpus=2, force_load_us=30 * SECOND)
    manners = Manners(
        load_s=(2.0, 9.0),
        stop_s=(0.0, 1.0),
        service_s=(0.5, 6.0),
        release_s=(0.0, 2.0),
        report_s=(0.0, 1.0),
        slots=(1, 3),
        load_fails=0.15,
        crashes=0.05,
        stalls=0.02,
        breaks=0.05,
        late_timers=0.2,
    )
    for run in range(2):
        with Recording(folder, settings, segment_bytes=SMALL_SEGMENTS, seed=run, manners=manners) as world:
            busy_hour(world, 60, from_s=1000.0 * run)


def world_of_groups(folder: Path) -> None:
    """Two that take turns, and one beside them; then all three take turns after a reload."""
    small = GroupSettings(members=("C",), swap=False, exclusive=False)
    of_an_engine(
        folder,
        {"engine": "group", "groups": {"turns": GroupSettings(members=("A", "B")), "small": small}},
        {"groups": {}},
    )


def world_of_a_matrix(folder: Path) -> None:
    """A with B or with C; after a reload C is alone, and A is dear."""
    of_an_engine(
        folder,
        {"engine": "matrix", "matrix": (MatrixSet(name="one", combinations=(("A", "B"), ("A", "C"))),)},
        {"matrix": (MatrixSet(name="one", combinations=(("A", "B"),)),), "matrix_evict_costs": {"A": 5}},
    )


def world_of_capacities(folder: Path) -> None:
    """B and C fit together, A with neither; after a reload the pool has room for A and one more."""
    of_an_engine(folder, {"engine": "capacity", "pools": {"ram": 10}}, {"pools": {"ram": 12}})


def of_an_engine(folder: Path, engine: dict[str, Any], reloaded: dict[str, Any]) -> None:
    """Three models on three GPUs, some faults, and a reload in the middle."""
    models = {
        name: ModelSettings(gpus=(gpu,), capacities={"ram": ram}, evict_cost=cost)
        for gpu, (name, ram, cost) in enumerate([("A", 7, 2), ("B", 5, 1), ("C", 4, 1)])
    }
    settings = SchedulerSettings(models=models, gpus=3, max_models_per_gpu=0, head_grace_us=2 * SECOND, **engine)
    manners = Manners(service_s=(0.5, 3.0), stop_s=(0.1, 1.0), slots=(1, 2), crashes=0.04)
    with Recording(folder, settings, segment_bytes=SMALL_SEGMENTS, manners=manners) as world:
        world.fact_at(30.5, ConfigLoaded(config=msgspec.structs.replace(settings, **reloaded)))
        all_in_turn(world, 60)


def real(folder: Path) -> None:
    """The router itself, on stand-ins: swaps, cancels, crashes, failed loads, administration, a kill -9, an end."""
    models = [
        Model("small", gpus=[0], slots=2, tokens=6, gap_s=0.02, last_words="GGML_ASSERT: something is wrong"),
        Model("other", gpus=[0], tokens=6, gap_s=0.02),
        Model("pair", gpus=[1], replicas=2, tokens=6, gap_s=0.02),
        Model("missing", gpus=[1], fail="missing"),
    ]
    with RouterProcess(folder, models, NUM_GPUS=2, QUEUE_HEAD_GRACE=0.3, COOLDOWN_FIRST=0.5) as router:
        names = ("small", "small", "other", "pair", "pair", "small", "other")
        answered([router.chat(name, stream=True) for name in names])
        waiting = [router.chat(name) for name in ("small", "other", "other", "missing")]
        left = router.chat("other", stream=True)
        router.wait_event("RequestArrived", rid=12)
        left.close()
        answered(waiting)
        for name in ("small", "other"):
            call = router.chat(name, stream=True, standin={"tokens": 1000})
            next(call.chunks())
            call.close()
        router.wait_event("SlotReleased", lambda event: event["rid"] == 14)
        answered([router.chat("small", stream=True, standin={"die_at_chunk": 3})])
        answered([router.chat("small", standin={"die_once": "golden"}), router.chat("small")])
        answered([router.call("POST", "/router/drain?wait=true"), router.chat("pair"), router.chat("nobody")])
        running = router.chat("other", stream=True, standin={"tokens": 1000})
        next(running.chunks())
        router.kill()
        router.start()
        answered([router.chat("other"), router.chat("small")])


def answered(calls: list[Call]) -> None:
    """All are over, some of them by a crash in the middle."""
    for call in calls:
        with suppress(CutShort):
            call.read()


def altered(folder: Path) -> None:
    """As `world_in_order`, with one decision that is not what was decided."""
    world_in_order(folder)


RECORDED: dict[str, Callable[[Path], None]] = {
    "world-in-order": world_in_order,
    "world-unruly": world_unruly,
    "world-of-groups": world_of_groups,
    "world-of-a-matrix": world_of_a_matrix,
    "world-of-capacities": world_of_capacities,
    "real": real,
    ALTERED: altered,
}


def main(names: list[str]) -> int:
    digests: dict[str, dict[str, object]] = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    for name in names or list(RECORDED):
        with tempfile.TemporaryDirectory(prefix="golden-") as work:
            folder = Path(work)
            RECORDED[name](folder)
            log = folder / "log" if (folder / "log").is_dir() else folder
            lines = without_machine(lines_of(log), folder)
            altered_seq = alter(lines) if name == ALTERED else 0
            path = GOLDEN / f"{SCHEMA}-{name}.ndjson.gz"
            path.write_bytes(gzip.compress(packed(lines), 9, mtime=0))
        result = verify(unpacked(path, Path(tempfile.mkdtemp(prefix="golden-"))))
        digests[path.name] = {"altered_seq": altered_seq} if altered_seq else digests_of(result)
        print(f"{path.name}: {path.stat().st_size} bytes, {result.events} events, {'ok' if result.ok else 'differs'}")
    DIGESTS.write_text(json.dumps(dict(sorted(digests.items())), indent=1) + "\n")
    return 0


def digests_of(result: Verified) -> dict[str, object]:
    """What must come out on every machine. The states are left out: their digest changes with each new field."""
    return {
        "policies": sorted({policy or 0 for policy in result.recorded_policies}),
        "decisions": result.decisions_digest,
    }


def without_machine(lines: list[Line], folder: Path) -> list[Line]:
    """What is only true on this machine, under names of nowhere; decisions repeat some of it, so everywhere."""
    names = [
        (str(folder), "/srv/models"),
        (str(REPOSITORY), "/opt/llama-router"),
        (sys.executable, "python3"),
        (sys.prefix, "/usr"),
        (str(Path.home()), "/home/user"),
    ]
    text = msgspec.json.encode(lines).decode()
    for path, name in names:
        text = text.replace(path, name)
    cleaned: list[Line] = msgspec.json.decode(text)
    return cleaned


def alter(lines: list[Line]) -> int:
    """The third dispatch did not wait as long as it says. Returns its seq."""
    dispatched = [line for line in lines if line["type"] == "RequestDispatched"]
    dispatched[2]["waited_us"] += 1
    seq: int = dispatched[2]["seq"]
    return seq


def packed(lines: list[Line]) -> bytes:
    """As one segment, with a chain."""
    data = b"".join(msgspec.json.encode(line)[:-1] + b',"crc":"00000000"}\n' for line in lines)
    return rechain(data, int(lines[0]["chain"], 16))[0]


def unpacked(path: Path, folder: Path) -> Path:
    """A log's directory with the golden log in it."""
    first = json.loads(gzip.decompress(path.read_bytes()).partition(b"\n")[0])
    (folder / f"{segment_name('events', first['seq'])}.gz").write_bytes(path.read_bytes())
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
