"""The stand-in does what its script says, and what llama-server does where the script says nothing."""

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.standin.client import Call, CutShort, is_comment
from tests.standin.gpu import alive
from tests.standin.ledger import Ledger
from tests.standin.process import FOLDER, StandIn
from tests.standin.script import Script, from_environment

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
STREAMED = [
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/completions",
    "/completions",
    "/completion",
    "/infill",
    "/v1/messages",
    "/v1/responses",
    "/v1/audio/transcriptions",
]
WHOLE_ONLY = ["/v1/embeddings", "/embeddings", "/embedding", "/rerank", "/v1/rerank", "/reranking", "/v1/systemone"]


def streamed(standin: StandIn, path: str = "/v1/chat/completions", **more: object) -> Call:
    return standin.call("POST", path, {**CHAT, "stream": True, **more})


def test_it_is_ready_after_little_work(tmp_path: Path) -> None:
    """From exec on, in time of the processor, taken by the stand-in itself: tests start it hundreds of times."""
    with StandIn(tmp_path) as standin:
        assert standin.ledger.wait_for("ready")["cpu_ms"] < 250


@pytest.mark.parametrize("path", STREAMED)
def test_a_stream_brings_every_token_and_its_own_last_event(tmp_path: Path, path: str) -> None:
    """Eight tokens by default, one frame each, then the end that its dialect has."""
    with StandIn(tmp_path).until_ready() as standin:
        frames = list(streamed(standin, path).frames())
        assert sum("w8 " in frame for frame in frames) >= 1
        last = {"/v1/messages": "message_stop", "/v1/responses": "response.completed"}.get(path, "[DONE]")
        last = '"stop": true' if path in ("/completion", "/completions", "/infill") else last
        assert last in frames[-1]


@pytest.mark.parametrize("path", STREAMED + WHOLE_ONLY)
def test_every_generation_route_answers_in_one_piece_and_says_what_it_was_sent(tmp_path: Path, path: str) -> None:
    """The hash of the received body comes back, so that a test can prove that a router changed nothing."""
    body = json.dumps({**CHAT, "input": "a", "documents": ["a"]}).encode()
    with StandIn(tmp_path).until_ready() as standin:
        call = standin.call("POST", path, body)
        assert call.status == 200
        assert call.header("x-standin-sha256") == hashlib.sha256(body).hexdigest()
        assert call.json()
        assert standin.ledger.wait_for("request_end")["path"] == path


def test_usage_comes_only_if_asked_for(tmp_path: Path) -> None:
    """Timings come in any case; usage in a frame of its own with no choices."""
    with StandIn(tmp_path).until_ready() as standin:
        silent = "".join(streamed(standin).frames())
        asked = list(streamed(standin, stream_options={"include_usage": True}).frames())
    assert '"usage"' not in silent
    assert '"timings"' in silent
    assert '"choices": []' in asked[-2]
    assert '"completion_tokens": 8' in asked[-2]


def test_only_health_is_public_and_only_health_answers_while_loading(tmp_path: Path) -> None:
    """As llama-server: 503 with its words during the load, 401 without the key."""
    with StandIn(tmp_path, load_s=30.0).until_listening() as standin:
        call = Call(standin.socket, "GET", "/health")
        assert (call.status, call.json()["error"]["message"]) == (503, "Loading model")
        assert Call(standin.socket, "GET", "/props").status == 401
        assert standin.call("POST", "/v1/chat/completions", CHAT).status == 503


def test_requests_beyond_its_slots_are_deferred(tmp_path: Path) -> None:
    """Two slots, three requests: the third gets a slot when one is free, and /slots shows who works."""
    with StandIn(tmp_path, gap_s=0.15).until_ready() as standin:
        calls = [streamed(standin) for _ in range(2)]
        standin.ledger.wait_for_count(2, "slot_taken")
        calls.append(streamed(standin))
        slots = standin.call("GET", "/slots").json()
        assert sorted((slot["is_processing"], slot["id_task"]) for slot in slots) == [(True, 1), (True, 2)]
        standin.ledger.wait_for_count(4, "chunk")
        assert standin.call("GET", "/slots").json()[0]["next_token"][0]["n_decoded"] > 1
        assert [len(list(call.chunks())) for call in calls] == [8, 8, 8]
        assert standin.ledger.events("slot_taken")[2]["mono_us"] >= standin.ledger.events("slot_freed")[0]["mono_us"]


@pytest.mark.parametrize("path", STREAMED + WHOLE_ONLY)
def test_a_client_that_hangs_up_frees_its_slot(tmp_path: Path, path: str) -> None:
    """Seen at once, even before the first byte; the slot is free a configured time later."""
    with StandIn(tmp_path, first_byte_s=30.0, release_delay_s=0.1).until_ready() as standin:
        call = streamed(standin, path)
        standin.ledger.wait_for("slot_taken")
        call.close()
        seen = standin.ledger.wait_for("disconnect_seen")
        freed = standin.ledger.wait_for("slot_freed")
        assert freed["mono_us"] - seen["mono_us"] >= 100_000


def test_a_chunked_body_with_expect_arrives_whole(tmp_path: Path) -> None:
    """The go-ahead comes first; chunk borders and trailers leave no trace in the body."""
    with StandIn(tmp_path).until_ready() as standin:
        body = json.dumps(CHAT).encode()
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(standin.socket)
        head = "POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer test-key\r\nExpect: 100-continue\r\n"
        sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"5\r\n%b\r\n%x\r\n%b\r\n0\r\nX-Trailer: a\r\n\r\n" % (body[:5], len(body) - 5, body[5:]))
        assert hashlib.sha256(body).hexdigest().encode() in sock.recv(4096)
        sock.close()


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        ("oom", "cudaMalloc failed: out of memory"),
        ("missing", "failed to open GGUF file"),
        ("magic", "invalid magic characters"),
        ("flag", "error: invalid argument"),
    ],
)
def test_a_failed_load_says_why_in_the_words_of_llama_server(tmp_path: Path, fail: str, text: str) -> None:
    """Exit code 1 and the line that tells the cause."""
    with StandIn(tmp_path, fail=fail) as standin:
        code, stderr = standin.end()
        assert code == 1
        assert text in stderr


def test_a_model_file_that_is_not_there_fails_the_load(tmp_path: Path) -> None:
    """No script is needed for that."""
    with StandIn(tmp_path, model=f"{tmp_path}/nowhere.gguf") as standin:
        code, stderr = standin.end()
        assert (code, "nowhere.gguf' (No such file or directory)" in stderr) == (1, True)


@pytest.mark.parametrize(("how", "code"), [("SIGSEGV", -11), ("SIGABRT", -6), ("SIGKILL", -9), ("exit:7", 7)])
def test_it_dies_in_any_way_at_any_chunk(tmp_path: Path, how: str, code: int) -> None:
    """Three chunks and nothing more; its last words are on stderr and its end in the ledger."""
    with StandIn(tmp_path, die=how, die_at_chunk=4, last_words="GGML_ASSERT(false) failed").until_ready() as standin:
        call = streamed(standin)
        with pytest.raises(CutShort):
            list(call.chunks())
        returned, stderr = standin.end()
        assert (returned, "GGML_ASSERT" in stderr) == (code, True)
        assert len(standin.ledger.events("chunk")) == 3
        assert standin.ledger.events("exit")[0]["how"] == how


def test_only_the_poisoned_request_kills(tmp_path: Path) -> None:
    """A body with the word ends the process, a body without it does not."""
    with StandIn(tmp_path, die_on="POISON").until_ready() as standin:
        assert standin.call("POST", "/completion", {"prompt": "fine"}).status == 200
        with pytest.raises(CutShort):
            standin.call("POST", "/completion", {"prompt": "POISON"}).read()
        assert standin.end()[0] == -11


def test_a_mark_kills_only_once(tmp_path: Path) -> None:
    """The first process that gets it dies, the second answers the same request."""
    body = {"prompt": "a", "standin": {"die_once": "mark"}}
    with StandIn(tmp_path).until_ready() as standin, pytest.raises(CutShort):
        standin.call("POST", "/completion", body).read()
    with StandIn(tmp_path).until_ready() as standin:
        assert standin.call("POST", "/completion", body).status == 200


def test_it_fails_its_first_loads_and_then_succeeds(tmp_path: Path) -> None:
    """Loads are counted across processes in the ledger's directory."""
    for _ in range(2):
        with StandIn(tmp_path, fail="oom", faulty_loads=2) as standin:
            assert standin.end()[0] == 1
    with StandIn(tmp_path, fail="oom", faulty_loads=2) as standin:
        standin.until_ready()


def test_silence_after_a_chunk_leaves_health_and_pings_alive(tmp_path: Path) -> None:
    """What a wedged server looks like: comments and a good /health, no data."""
    with StandIn(tmp_path, silent_at_chunk=3, ping_s=0.05).until_ready() as standin:
        frames = streamed(standin).frames()
        seen = [next(frames) for _ in range(8)]
        assert [frame for frame in seen if "w2 " in frame]
        assert is_comment(seen[-1])
        assert Call(standin.socket, "GET", "/health").status == 200


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("close", ["fin", "rst"])
def test_it_cuts_an_answer_short(tmp_path: Path, close: str, streaming: bool) -> None:
    """Without the last HTTP chunk, or without any answer; the process lives on."""
    with StandIn(tmp_path, close_at_chunk=2, close=close).until_ready() as standin:
        call = standin.call("POST", "/v1/chat/completions", {**CHAT, "stream": streaming})
        with pytest.raises(CutShort):
            call.read()
        assert Call(standin.socket, "GET", "/health").status == 200


def test_it_can_end_a_stream_cleanly_in_the_middle(tmp_path: Path) -> None:
    """A proper end of the body, but no last event: what a naive router takes for success."""
    with StandIn(tmp_path, close_at_chunk=3, close="clean").until_ready() as standin:
        frames = list(streamed(standin).frames())
        assert "w2 " in frames[-1]


@pytest.mark.parametrize("status", [400, 500, 503])
def test_it_answers_errors_in_llama_servers_shape(tmp_path: Path, status: int) -> None:
    """For one request only, asked for in its own body; and the connection ends, as llama-server's does."""
    with StandIn(tmp_path).until_ready() as standin:
        call = standin.call("POST", "/v1/chat/completions", {**CHAT, "standin": {"status": status, "error": "why"}})
        assert (call.status, call.header("connection")) == (status, "close")
        assert call.json()["error"]["message"] == "why"


def test_it_ignores_sigterm_or_leaves_late(tmp_path: Path) -> None:
    """SIGTERM is seen and nothing follows, or the exit follows after its delay."""
    with StandIn(tmp_path, exit_delay_s=0.2).until_ready() as standin:
        standin.stop()
        assert standin.end()[0] == 0
        term, end = standin.ledger.wait_for("sigterm"), standin.ledger.wait_for("exit")
        assert end["mono_us"] - term["mono_us"] >= 200_000
    with StandIn(tmp_path, ignore_term=True).until_ready() as standin:
        standin.stop()
        standin.ledger.wait_for("sigterm", pid=standin.process.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            standin.process.wait(0.1)


def test_its_grandchild_survives_sigterm(tmp_path: Path) -> None:
    """It stays in the process group; only SIGKILL to the group ends it."""
    with StandIn(tmp_path, grandchild=True).until_ready() as standin:
        started = standin.ledger.wait_for("started", model="grandchild")
        os.killpg(standin.process.pid, 15)
        assert standin.process.wait(5) == 0
        assert alive(started["pid"])
        os.killpg(standin.process.pid, 9)


def test_gpu_memory_is_taken_until_it_has_really_come_back(tmp_path: Path) -> None:
    """Alive: taken. Gone with a lag: taken for the lag. A second process over the cap fails as CUDA does."""
    env = {"CUDA_VISIBLE_DEVICES": "2,0", "STANDIN_GPU_CAP": "1"}
    with StandIn(tmp_path, env=env, gpu_lag_s=1.0).until_ready() as first:
        pid = first.process.pid
        assert (first.memory.residents(2), first.memory.residents(0), first.memory.residents(1)) == ([pid], [pid], [])
        with StandIn(tmp_path, env=env) as second:
            assert second.end()[0] == 1
            assert first.memory.violations()[0]["pid"] == second.process.pid
        first.stop()
        first.end()
        assert first.memory.residents(0) == [pid]
        end = first.ledger.events("exit", pid=pid)[0]["mono_us"] + 990_000
        while first.memory.residents(0):
            assert time.monotonic_ns() // 1000 < end + 10_000_000
        assert time.monotonic_ns() // 1000 >= end


def test_a_detached_stream_outlives_its_client(tmp_path: Path) -> None:
    """Read on from any byte, looked up, ended by DELETE."""
    with StandIn(tmp_path, gap_s=0.03).until_ready() as standin:
        call = standin.call("POST", "/v1/chat/completions", {**CHAT, "stream": True}, X_Conversation_Id="c1")
        next(call.frames())
        call.close()
        again = standin.call("GET", "/v1/stream?conv_id=c1&from=0").read()
        assert again.count(b'content": "w') == 8
        assert standin.call("GET", "/v1/stream?conv_id=c1&from=100").read() == again[100:]
        status = standin.call("POST", "/v1/streams/lookup", {"conversation_ids": ["c1", "c2"]}).json()
        assert [(found["conversation_id"], found["is_done"]) for found in status] == [("c1", True)]
        assert standin.call("DELETE", "/v1/stream?conv_id=c1").status == 204
        assert standin.call("GET", "/v1/stream?conv_id=c1&from=0").status == 404


def test_deleting_a_detached_stream_ends_its_generation(tmp_path: Path) -> None:
    """The slot is free although the stream would have gone on for long."""
    with StandIn(tmp_path, gap_s=0.02, tokens=10_000).until_ready() as standin:
        call = standin.call("POST", "/v1/chat/completions", {**CHAT, "stream": True}, X_Conversation_Id="c1")
        next(call.frames())
        standin.call("DELETE", "/v1/stream?conv_id=c1").read()
        standin.ledger.wait_for("slot_freed")


def test_an_upload_names_its_model_in_a_form_field(tmp_path: Path) -> None:
    """The file may stand before the model."""
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    form += b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n'
    with StandIn(tmp_path).until_ready() as standin:
        kind = {"Content_Type": "multipart/form-data; boundary=b"}
        assert "w1" in standin.call("POST", "/v1/audio/transcriptions", form, **kind).json()["text"]
        assert standin.ledger.events("request_start")[0]["asked"] == "whisper"


def test_the_wrapper_leaves_the_server_a_grandchild(tmp_path: Path) -> None:
    """A signal to the wrapper alone does not reach the server."""
    ledger = {"STANDIN_LEDGER": str(tmp_path / "ledger")}
    (tmp_path / "m.gguf").write_text("{}")
    command = [str(FOLDER / "wrapper.sh"), "-m", f"{tmp_path}/m.gguf", "--host", f"{tmp_path}/w.sock"]
    process = subprocess.Popen(command, env=os.environ | ledger, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        started = Ledger(tmp_path / "ledger").wait_for("ready")
        assert started["pid"] != process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_help_has_the_layout_of_llama_server() -> None:
    """Sections, names at column 0 with the short one padded, text from column 40, the variable in a line of its own."""
    text = subprocess.run([FOLDER / "llama-server", "--help"], capture_output=True, text=True, check=True).stdout
    assert text.startswith("----- common params -----\n\n-h,    --help, --usage ")
    assert "\n\n\n----- example-specific params -----\n\n" in text
    assert f"\n-np,   --parallel N{'':21}slots" in text
    assert f"\n{'':40}(env: LLAMA_ARG_CTX_SIZE)\n" in text


def test_an_unknown_argument_is_refused_in_llama_servers_words(tmp_path: Path) -> None:
    """Exit code 1, the argument named."""
    with StandIn(tmp_path, "--surprise", "1") as standin:
        assert standin.end() == (1, "error: invalid argument: --surprise\n")


def test_a_misspelt_order_is_an_error() -> None:
    """A fault that is never injected would make a test pass for nothing."""
    with pytest.raises(ValueError, match="unknown order 'tokns'"):
        Script(tokns=3)
    with pytest.raises(ValueError, match="load_s is 'x', wanted float"):
        Script(load_s="x")
    orders = from_environment({"STANDIN_LOAD_S": "2", "STANDIN_FAIL": "oom", "STANDIN_LEDGER": "/tmp"})
    assert (orders.load_s, orders.fail) == (2.0, "oom")


def test_loading_with_progress_prints_and_loading_silently_does_not(tmp_path: Path) -> None:
    """A stall detector must tell the two apart by output alone."""
    with StandIn(tmp_path, load_s=0.5, load_progress=True).until_ready() as standin:
        standin.stop()
        assert standin.end()[1].count("tensors read") >= 2
    with StandIn(tmp_path, load_s=0.5).until_ready() as standin:
        standin.stop()
        assert "tensors read" not in standin.end()[1]


def test_many_threads_may_write_one_ledger(tmp_path: Path) -> None:
    """Lines stay whole and carry a time that orders them."""
    with StandIn(tmp_path, "-np", "8").until_ready() as standin:
        threads = [threading.Thread(target=lambda: list(streamed(standin).frames())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(standin.ledger.wait_for_count(8, "request_end")) == 8
        assert len(standin.ledger.events("chunk")) == 64


def test_a_slot_is_saved_to_a_file_and_restored_from_it(tmp_path: Path) -> None:
    """As llama-server does it, which ends on a file that is cut short."""
    with StandIn(tmp_path, "--slot-save-path", f"{tmp_path}/").until_ready() as server:
        body = {"messages": [{"role": "user", "content": "once upon a time " * 40}]}
        assert server.call("POST", "/v1/chat/completions", body).json()["timings"]["cache_n"] == 0
        saved = server.call("POST", "/slots/0?action=save", {"filename": "f"}).json()
        assert saved["n_saved"] > 100
        assert saved["n_written"] == (tmp_path / "f").stat().st_size
        restored = server.call("POST", "/slots/1?action=restore", {"filename": "f"}).json()
        assert restored["n_restored"] == saved["n_saved"]
        assert server.call("POST", "/slots/0?action=save", {"filename": "../f"}).status == 400
        (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes()[:40])
        with pytest.raises(Exception):  # noqa: B017, PT011
            server.call("POST", "/slots/1?action=restore", {"filename": "f"}).json()
        assert server.end()[0] < 0
