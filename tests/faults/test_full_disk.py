"""A log that cannot be written: what runs, runs on; what comes is told; and with the disk all is well again."""

import resource
import subprocess
import sys
from pathlib import Path

from tests.faults.checks import every_request_has_one_outcome
from tests.standin.fixtures import Model, RouterProcess
from tests.standin.ledger import polls


def limit_files(router: RouterProcess, size: int) -> None:
    """No file of the router may grow beyond this many bytes from now on, as on a full disk."""
    assert router.process
    _, hard = resource.prlimit(router.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(router.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def until_ready_is(router: RouterProcess, status: int) -> str:
    """The code of its error, if it has one."""
    for _ in polls(10, every_s=0.05):
        call = router.call("GET", "/ready")
        if call.status == status:
            return "" if status == 200 else str(call.json()["error"]["code"])
    raise AssertionError(f"/ready never answered {status}")


def test_a_router_whose_disk_is_full_goes_on_with_what_runs_and_refuses_what_comes(tmp_path: Path) -> None:
    """A stream is finished to its last token; new requests get 503 `log_unavailable`, readiness is off, health is not.

    If it was a request that met the full disk first, it waits, since its arrival is not in the log, and is served when
    there is room again; and so is everything else. The log has no hole.
    """
    with RouterProcess(tmp_path, [Model("a", tokens=60, gap_s=0.05, slots=4)]) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        limit_files(router, 0)
        met_it = router.chat("a", standin={"tokens": 2})
        assert until_ready_is(router, 503) == "log_unavailable"
        assert router.call("GET", "/health").status == 200
        assert router.status()["log_available"] is False
        for _ in range(3):
            refused = router.chat("a")
            assert (refused.status, refused.json()["error"]["code"]) == (503, "log_unavailable")
        frames, complete = stream.frames_to_the_end()
        assert complete
        assert frames[-1].endswith("data: [DONE]")
        assert until_ready_is(router, 503) == "log_unavailable"
        limit_files(router, resource.RLIM_INFINITY)
        assert until_ready_is(router, 200) == ""
        served = met_it.status == 200
        assert met_it.status in (200, 503)
        assert router.chat("a", standin={"tokens": 2}).status == 200
    every_request_has_one_outcome(router)
    assert len(router.events("RequestFinished")) == 2 + served
    command = [sys.executable, "-m", "router.cli", "log", "verify", str(router.log_dir)]
    proved = subprocess.run(command, env=router.env, capture_output=True, text=True, timeout=20, check=False)
    assert proved.returncode == 0, proved.stdout + proved.stderr


def test_a_router_whose_disk_is_full_can_be_stopped(tmp_path: Path) -> None:
    """What runs may end first; nobody is left, the exit code tells of it, and the next run closes the account."""
    with RouterProcess(tmp_path, [Model("a", tokens=30, gap_s=0.05, slots=4)]) as router:
        stream = router.chat("a", stream=True)
        next(stream.chunks())
        limit_files(router, 0)
        waiting = router.chat("a")
        assert until_ready_is(router, 503) == "log_unavailable"
        assert router.process
        router.process.terminate()
        assert stream.frames_to_the_end()[1]
        assert waiting.status == 503
        assert router.process.wait(10) == 1
        assert router.children() == []
        router.start()
        assert router.chat("a", standin={"tokens": 2}).status == 200
    every_request_has_one_outcome(router)
    assert router.events("RequestLost")


def test_a_second_router_on_the_same_log_is_told_who_has_it(tmp_path: Path) -> None:
    """It ends at once, with the pid of the first, which does not notice."""
    with RouterProcess(tmp_path, [Model("a")]) as router:
        assert router.process
        command = [sys.executable, "-m", "router.cli", "serve", "--port", "0"]
        second = subprocess.run(command, env=router.env, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 1
        assert str(router.process.pid) in second.stderr
        assert str(router.log_dir) in second.stderr
        assert "Traceback" not in second.stderr
        assert router.chat("a").status == 200
