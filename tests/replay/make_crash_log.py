"""Records examples/crash-log anew, on purpose: python -m tests.replay.make_crash_log

A router on stand-ins serves two models. A process of one of them dies under two requests while a third one waits, is
loaded again, and dies once more of the same conversation. docs/postmortem.md tells how one finds that out,
and shows its seqs and fingerprints: who records it anew corrects the page. A new POLICY_VERSION is a reason to.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from eventlog.segments import STREAMS, segment_name
from tests.replay.make_golden import answered, packed, without_machine
from tests.replay.recording import lines_of
from tests.standin.client import Call
from tests.standin.fixtures import REPOSITORY, Model, RouterProcess

TARGET = REPOSITORY / "examples" / "crash-log"
WORDS = (
    "ggml-cuda.cu:103: CUDA error: an illegal memory access was encountered\n"
    "  current device: 0, in function launch_mul_mat_q"
)


def an_evening(folder: Path) -> None:
    """Anna talks, Ben's long document kills, twice; Carla waits; qwen3-8b on the other GPU notices nothing."""
    models = [
        Model("gemma-12b", gpus=[0], slots=2, tokens=30, gap_s=0.04, load_s=0.4, last_words=WORDS, die="SIGABRT"),
        Model("qwen3-8b", gpus=[1], tokens=60, gap_s=0.05, load_s=0.2),
    ]
    keys = {name: f"the key of {name}" for name in ("anna", "ben", "carla")}

    with RouterProcess(folder, models, top={"keys": keys}, NUM_GPUS=2, MAX_MODELS_PER_GPU=1) as router:

        def says(name: str, model: str, text: str, **standin: object) -> Call:
            body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 500}
            body |= {"standin": standin} if standin else {}
            return router.call("POST", "/v1/chat/completions", body, Authorization=f"Bearer {keys[name]}")

        beside = says("carla", "qwen3-8b", "Tell me about the sea")
        anna = says("anna", "gemma-12b", "Tell me a story", tokens=200)
        router.wait_event("TokensStreamed", rid=2)
        document = "What does this document say? " + "It says much. " * 300
        ben = says("ben", "gemma-12b", document, die_at_chunk=8, first_byte_s=0.3)
        router.wait_event("RequestDispatched", rid=3)
        waiting = says("carla", "gemma-12b", "And what about the moon?")
        answered([anna, ben, waiting])
        answered([says("anna", "gemma-12b", "Tell me a story", tokens=20)])
        second = says("anna", "gemma-12b", "Another one", tokens=60, first_byte_s=2.0)
        router.wait_event("RequestSent", rid=6)
        answered([says("ben", "gemma-12b", document, die_at_chunk=8), beside])
        router.wait_event("ModelCooledDown", model="gemma-12b")
        second.close()


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="crash-") as work:
        an_evening(Path(work))
        log = Path(work) / "log"
        streams = {stream: without_machine(lines_of(log, stream), Path(work)) for stream in STREAMS}
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    for stream, lines in streams.items():
        path = TARGET / segment_name(stream, lines[0]["seq"])
        path.write_bytes(packed(lines))
        print(f"{path.name}: {path.stat().st_size} bytes, {len(lines)} events")
    return 0


if __name__ == "__main__":
    sys.exit(main())
