"""Large uploads while they wait: on disk, not in memory, and whole when their turn comes."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checks import routed
from tests.standin.client import Call
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls

SIZE = 100_000_000
COUNT = 5
MIB = 1 << 20


def memory_of(router: RouterProcess) -> dict[str, int]:
    """In bytes, as the kernel counts it: VmRSS and its parts."""
    assert router.process
    text = Path(f"/proc/{router.process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return {name: int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "RssAnon")}


def nameless_files(router: RouterProcess) -> list[str]:
    """Files in the run directory that the router holds open and that have no name any more."""
    assert router.process
    descriptors = Path(f"/proc/{router.process.pid}/fd").iterdir()
    targets = [os.readlink(descriptor) for descriptor in descriptors if descriptor.is_symlink()]
    return [target for target in targets if target.startswith(str(router.folder / "run")) and "(deleted)" in target]


@pytest.mark.slow
def test_five_queued_uploads_of_100_mb_take_no_memory_to_speak_of(tmp_path: Path) -> None:
    """Pictures in base64, while the only slot is taken: what waits is in nameless files of the run directory.

    64 MiB is what bodies may take together (BODY_MEMORY_MIB); a body is looked into in passing. One is sent on, the
    others leave the queue: that frees their place on disk as well.
    """
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * (SIZE // 4)}}
    fields: dict[str, Any] = {"model": "a", "max_tokens": 2, "messages": [{"role": "user", "content": [picture]}]}
    body = json.dumps(fields).encode()
    with routed(tmp_path, [Model("a", tokens=2)]) as router:
        stream = router.chat("a", stream=True, standin={"tokens": 10_000, "gap_s": 0.05})
        next(stream.chunks())
        before = memory_of(router)
        most = 0
        with ThreadPoolExecutor(COUNT) as pool:
            sending = [pool.submit(router.call, "POST", "/v1/chat/completions", body) for _ in range(COUNT)]
            for _ in polls(60, every_s=0.05):
                most = max(most, memory_of(router)["RssAnon"] - before["RssAnon"])
                if len(router.status()["queue"]) == COUNT:
                    break
            calls: list[Call] = [future.result() for future in sending]
        assert len(nameless_files(router)) == COUNT
        at_rest = memory_of(router)["VmRSS"] - before["VmRSS"]
        assert [event["body_bytes"] for event in router.events("RequestArrived")[1:]] == [len(body)] * COUNT
        assert at_rest < 64 * MIB, f"{at_rest / MIB:.0f} MiB"
        assert most < 192 * MIB, f"{most / MIB:.0f} MiB at most"
        print(f"RSS +{at_rest / MIB:.0f} MiB at rest, anonymous memory +{most / MIB:.0f} MiB at most")
        for call in calls[1:]:
            call.close()
        stream.close()
        assert calls[0].status == 200
        for _ in polls(10):
            if not nameless_files(router):
                break
        assert nameless_files(router) == []
        assert calls[0].header("x-standin-sha256") == hashlib.sha256(body).hexdigest()
