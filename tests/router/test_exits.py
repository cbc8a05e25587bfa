"""A process that ends tells why in three ways: its status, its last words, the kernel. One cause comes out."""

import signal

import pytest

from router.exits import Exit, crash, load_failure

CUDA_OOM = [
    "0.00.310.041 I load_tensors: loading model tensors, this can take a while...",
    "0.00.947.119 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: "
    "cudaMalloc failed: out of memory",
    "0.00.947.140 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 9437184000",
    "0.01.100.000 E llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    "0.01.100.900 E srv    load_model: failed to load model, '/models/big.gguf'",
]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (CUDA_OOM, "gpu_oom"),
        (["CUDA error: out of memory", "  current device: 0, in function alloc at ggml-cuda.cu:500"], "gpu_oom"),
        (["allocating 500.00 MiB on device 1: hipMalloc failed: out of memory"], "gpu_oom"),
        (["alloc_tensor_range: failed to allocate ROCm0 buffer of size 10"], "gpu_oom"),
        (["ggml_vulkan: Device memory allocation of size 1048898304 failed."], "gpu_oom"),
        (["ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"], "gpu_oom"),
        (["level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"], "gpu_oom"),
        (["E llama_init_from_model: failed to initialize the context: failed to allocate compute buffers"], "gpu_oom"),
        (["terminate called after throwing an instance of 'std::bad_alloc'"], "host_oom"),
        (["ggml_aligned_malloc: insufficient memory (attempted to allocate 65536.00 MB)"], "host_oom"),
        (["llama_mmap: mmap failed: Cannot allocate memory"], "host_oom"),
        (["error: invalid argument: --contxt-size"], "bad_flag"),
        (['error while handling argument "--ctx-size": stoi'], "bad_flag"),
        (
            ['error while handling argument "--draft": the argument has been removed. use --spec-draft-n-max'],
            "bad_flag",
        ),
        (
            [
                "gguf_init_from_file: failed to open GGUF file '/m/x.gguf' (No such file or directory)",
                "llama_model_load: error loading model: llama_model_loader: failed to load model from /m/x.gguf",
            ],
            "missing_file",
        ),
        (["error loading model: failed to open /m/x.gguf: Permission denied"], "missing_file"),
        (
            [
                "gguf_init_from_file_ptr: invalid magic characters: 'oops', expected 'GGUF'",
                "llama_model_load: error loading model",
            ],
            "bad_model",
        ),
        (["error loading model: unknown model architecture: 'qwen9'"], "bad_model"),
        (["tensor 'blk.3.ffn_up' data is not within the file bounds, model is corrupted or incomplete"], "bad_model"),
        (["something nobody has seen before"], "exit"),
        ([], "exit"),
    ],
)
def test_a_failed_load_is_told_apart_by_what_the_child_said(lines: list[str], kind: str) -> None:
    """Each kind has its own cure: wait for memory, mend the preset, fetch the file, or just try again."""
    assert load_failure(Exit(code=1), lines).kind == kind


def test_the_reason_quotes_the_line_that_came_first_and_leaves_out_its_clock() -> None:
    """The later lines are what followed from it; the time stamp says nothing to a client."""
    reason = load_failure(Exit(code=1), CUDA_OOM).reason
    assert reason == (
        "out of GPU memory (exit code 1): ggml_backend_cuda_buffer_type_alloc_buffer: "
        "allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory"
    )


def test_a_harmless_warning_does_not_explain_a_failure() -> None:
    """llama-server falls back happily from many things that it could not open; only an error counts."""
    lines = [
        "0.00.001.000 W hf_cache: no etag: No such file or directory",
        "0.00.200.000 E gguf_init_from_file: invalid magic characters: 'abcd', expected 'GGUF'",
    ]
    assert load_failure(Exit(code=1), lines).kind == "bad_model"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGKILL])
def test_each_signal_is_named(number: signal.Signals) -> None:
    """A segmentation fault and an abort are different stories, at load and afterwards."""
    loading = load_failure(Exit(signal=number), ["loading"])
    assert loading.kind == "signal"
    assert number.name in loading.reason
    assert number.name in crash(Exit(signal=number), ["serving"]).reason


def test_a_signal_does_not_become_a_bad_model_by_its_last_words() -> None:
    """After an abort nothing is known for certain, so the model gets its second attempt."""
    lines = ["GGML_ASSERT(n > 0) failed", "error loading model"]
    verdict = load_failure(Exit(signal=signal.SIGABRT), lines)
    assert verdict.kind == "signal"
    assert verdict.reason == "the process was ended by a signal (ended by SIGABRT): error loading model"


def test_a_kill_that_was_not_ours_is_the_kernel_s_only_with_evidence() -> None:
    """SIGKILL comes from the out-of-memory killer or from a person; the kernel's counter tells which."""
    killed = Exit(signal=signal.SIGKILL)
    assert load_failure(killed, [], oom_killed=True).kind == "host_oom"
    assert load_failure(killed, []).kind == "signal"
    assert crash(killed, [], oom_killed=True).cause == "host_oom"
    found = crash(killed, [])
    assert found.cause == "killed"
    assert found.reason.startswith("the process was killed (ended by SIGKILL): by hand, by another program, or")


def test_a_crash_in_service_for_want_of_gpu_memory_is_recognised() -> None:
    """llama.cpp aborts when a compute buffer does not fit any more."""
    verdict = crash(Exit(signal=signal.SIGABRT), ["CUDA error: out of memory", "ggml-cuda.cu:98: CUDA error"])
    assert (verdict.cause, "CUDA error: out of memory" in verdict.reason) == ("gpu_oom", True)


def test_an_exit_in_service_quotes_the_last_line_that_sounds_like_trouble() -> None:
    """The very last line is often only a farewell."""
    verdict = crash(Exit(code=3), ["srv error: decode failed, ret = -3", "srv operator(): cleaning up before exit..."])
    assert verdict.cause == "exit"
    assert verdict.reason == "the process ended by itself (exit code 3): srv error: decode failed, ret = -3"


def test_a_line_that_is_only_information_explains_nothing() -> None:
    """A process that was ended from outside dies in the middle of everyday life."""
    assert crash(Exit(signal=signal.SIGTERM), ["0.03.928.436 I slot release: id 1 | stop processing"]).reason == (
        "the process was ended by a signal (ended by SIGTERM)"
    )


def test_a_program_that_cannot_be_run_is_no_fault_of_the_model() -> None:
    """The step before the exec says so with the exit code that shells use."""
    verdict = load_failure(Exit(code=127), ["llama-router: cannot run '/opt/llama-server': Exec format error"])
    assert verdict.kind == "spawn"
    assert "Exec format error" in verdict.reason


def test_a_line_without_end_is_cut_in_the_reason() -> None:
    """A reason is a sentence, whatever the child printed."""
    assert len(load_failure(Exit(code=1), ["error: " + "x" * 10_000]).reason) < 400
