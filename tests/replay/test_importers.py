"""Traces of others become workloads, and what is wrong with a file is said with its line."""

import csv
from functools import partial
from pathlib import Path

import pytest

from eventlog.settings import ModelSettings, SchedulerSettings
from replay.importers import detect, read_traces
from replay.workload import (
    Call,
    Workload,
    WorkloadError,
    first,
    keep_every,
    read_workload,
    spread,
    stretch,
    write_workload,
)

AZURE_CODE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:05.0319600,3180,8
"""
AZURE_CONV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.4799600,374,44
"""
MOONCAKE = """{"timestamp": 0, "input_length": 2000, "output_length": 50, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 500, "input_length": 1600, "output_length": 9, "hash_ids": [0, 7, 8, 9]}
{"timestamp": 27000, "input_length": 2600, "output_length": 70, "hash_ids": [0, 1, 2, 10, 11, 12]}
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,2.5,ChatGPT,472,18,490,Conversation log
45,s2,0,GPT-4,1087,0,1087,API log
118,s1,4,ChatGPT,900,60,960,Conversation log
"""
LLAMA_SWAP = """[
 {"id":0,"timestamp":"2026-03-01T12:00:10.123456789+01:00","model":"qwen","req_path":"/v1/chat/completions",
  "resp_status_code":200,"duration_ms":4000,
  "tokens":{"cache_tokens":100,"input_tokens":20,"output_tokens":30,"prompt_per_second":200.0}},
 {"id":1,"timestamp":"2026-03-01T12:00:11+01:00","model":"qwen","req_path":"/v1/chat/completions",
  "resp_status_code":502,"duration_ms":1,"tokens":{}}
]"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_two_azure_files_become_two_models_in_the_order_of_their_clocks(tmp_path: Path) -> None:
    """Each file is a service; merged on their timestamps they are a trace of two models."""
    code, conv = write(tmp_path, "code.csv", AZURE_CODE), write(tmp_path, "conv.csv", AZURE_CONV)
    workload = read_traces([code, f"chat={conv}"])
    assert [
        (call.number, call.at_us, call.model, call.prompt_tokens, call.output_tokens) for call in workload.calls
    ] == [
        (1, 0, "code", 4808, 10),
        (2, 500_000, "chat", 374, 44),
        (3, 1_052_000, "code", 3180, 8),
    ]
    assert sorted(workload.settings.models) == ["chat", "code"]
    assert "CC-BY-4.0" in workload.source


def test_a_growing_prefix_in_mooncake_s_trace_is_one_conversation(tmp_path: Path) -> None:
    """The third request repeats the full blocks of the first; the second shares only the system prompt."""
    calls = read_traces([write(tmp_path, "mooncake.jsonl", MOONCAKE)]).calls
    assert calls[0].conversation == calls[2].conversation != calls[1].conversation
    assert calls[0].prefix == (("0", 512), ("1", 1024), ("2", 1536), ("3", 2000))


def test_burstgpt_s_failures_are_left_out_and_its_sessions_kept(tmp_path: Path) -> None:
    calls = read_traces([write(tmp_path, "burst.csv", BURSTGPT)]).calls
    assert [(call.at_us, call.model, call.conversation) for call in calls] == [
        (0, "ChatGPT", "s1"),
        (113_000_000, "ChatGPT", "s1"),
    ]


def test_a_request_of_llama_swap_arrived_before_its_entry_was_written(tmp_path: Path) -> None:
    """What the cache had is part of the prompt; a failed request is no load."""
    later = '{"timestamp":"2026-03-01T11:00:20Z","model":"phi","input_tokens":5,"output_tokens":6,"duration_ms":1000}'
    array = write(tmp_path, "activity.json", LLAMA_SWAP)
    lines = write(tmp_path, "older.jsonl", later)
    assert detect(Path(array)) == "llama-swap"
    calls = read_traces([array, lines], "llama-swap").calls
    assert [(call.model, call.prompt_tokens, call.output_tokens) for call in calls] == [
        ("qwen", 120, 30),
        ("phi", 5, 6),
    ]
    assert calls[1].at_us == 19_000_000 - 6_123_456


def test_any_csv_will_do_if_it_has_a_time_and_tokens(tmp_path: Path) -> None:
    text = "time,model,prompt_tokens,output_tokens,conversation\n0.5,a,10,20,x\n0.75,,30,40,\n"
    calls = read_traces([write(tmp_path, "mine.csv", text)]).calls
    assert [(call.at_us, call.model, call.conversation) for call in calls] == [(0, "a", "x"), (250_000, "mine", "")]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2: timestamp is 'yesterday'"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-4,2\n", "contexttokens is '-4'"),
        ("a.csv", "", "no known format"),
        ("a.csv", "time,model\n1,a\n", "no column prompt"),
        ("a.jsonl", '{"timestamp": 0, "input_length": "x", "hash_ids": []}\n', "line 1"),
        ("a.txt", "hello\n", "no known format"),
        ("a.ndjson", '{"type":"RouterStarted","seq":1}\n', "a log of ours is named by its directory"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
    ],
)
def test_what_is_wrong_with_a_trace_is_said_with_its_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        read_traces([write(tmp_path, name, text)])


CSV = "time,prompt_tokens,output_tokens,client\n"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", (CSV + "1,10,20,Andr\u00e9\n").encode("latin-1"), "a.csv, line 2: byte 0xe9 is not UTF-8"),
        ("a.csv", (CSV + "1,10,inf,x\n").encode(), "line 2: output_tokens is 'inf', not a whole number from 0 to"),
        ("a.csv", (CSV + "1,1e300,20,x\n").encode(), "line 2: prompt_tokens is '1e300'"),
        ("a.csv", (CSV + "nan,10,20,x\n").encode(), "line 2: time is 'nan', not seconds"),
        ("a.csv", (CSV + "inf,10,20,x\n").encode(), "line 2: time is 'inf', not seconds"),
        ("a.csv", (CSV + "1772362800000,10,20,x\n").encode(), "milliseconds are too large"),
        ("a.csv", (CSV + "1,10\n").encode(), "line 2: output_tokens is ''"),
        ("a.csv", (CSV + "1," + "x" * 300 + ",2\n").encode(), r"prompt_tokens is 'x{60}\.\.\.', not"),
        ("a.jsonl", MOONCAKE.replace("2600", "-2600").encode(), "line 3"),
        ("a.jsonl", MOONCAKE.replace("27000", "1e300").encode(), "line 3"),
        ("a.json", LLAMA_SWAP.replace("4000", "1e300").encode(), r"\$\[0\].duration_ms"),
        (
            "a.json",
            b'{"timestamp":"x","model":"a","tokens":{},"req_path":"/"}\n{"tokens":1}\n',
            "line 2 is no activity",
        ),
    ],
)
def test_an_odd_file_is_told_with_its_place(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    """Neither a traceback nor a simulation that takes for ever."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(WorkloadError, match=words):
        read_traces([str(tmp_path / name)])


@pytest.mark.parametrize("text", [AZURE_CODE, MOONCAKE, BURSTGPT, LLAMA_SWAP, CSV + "1,10,20,x\n"])
def test_a_file_may_come_from_anywhere(tmp_path: Path, text: str) -> None:
    """With a byte order mark, the line ends of another system, and empty lines; a table with empty cells below."""
    plain, odd = tmp_path / "a" / "trace", tmp_path / "b" / "trace"
    plain.parent.mkdir()
    odd.parent.mkdir()
    plain.write_text(text)
    empty = ",,,\r\n" if "," in text.partition("\n")[0] and not text.startswith(("{", "[")) else ""
    odd.write_bytes(b"\xef\xbb\xbf" + (text.replace("\n", "\r\n") + empty + "\r\n").encode())
    assert detect(odd) == detect(plain)
    assert read_traces([str(odd)]) == read_traces([str(plain)])


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The rest of the file would be one cell."""
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit(1000)))
    file = write(tmp_path, "a.csv", CSV + '1,10,20,"x\n' + "2,10,20,y\n" * 200)
    with pytest.raises(WorkloadError, match=r"a\.csv, line \d+: field larger than field limit"):
        read_traces([file])


def test_a_table_may_hold_the_text_of_its_prompts(tmp_path: Path) -> None:
    """Beside their numbers, and under the names that the numbers might have had."""
    text = f'time,prompt,output,prompt_tokens,output_tokens\n1,"{"word, " * 40_000}","yes",10,20\n'
    assert read_traces([write(tmp_path, "texts.csv", text)]).calls[0].prompt_tokens == 10


def test_clocks_that_have_nothing_in_common_are_not_merged(tmp_path: Path) -> None:
    """One counts from its own beginning, the other tells the date: there would be fifty years between them."""
    azure, burst = write(tmp_path, "code.csv", AZURE_CODE), write(tmp_path, "burst.csv", BURSTGPT)
    with pytest.raises(WorkloadError, match=r"burst\.csv counts time from its own beginning and .*code\.csv tells the"):
        read_traces([azure, burst])


def test_conversations_of_two_files_of_one_name_are_different_ones(tmp_path: Path) -> None:
    files = []
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
        files.append(write(tmp_path / folder, "burst.csv", BURSTGPT))
    assert len({call.conversation for call in read_traces(files).calls}) == 2


def test_whole_sessions_are_thinned_and_time_is_stretched_and_both_are_said(tmp_path: Path) -> None:
    """Every second session: the first conversation with both of its turns."""
    workload = read_traces([write(tmp_path, "mooncake.jsonl", MOONCAKE)])
    thin = stretch(keep_every(workload, 2), 10)
    assert [(call.number, call.at_us, call.prompt_tokens) for call in thin.calls] == [
        (1, 0, 2000),
        (2, 270_000_000, 2600),
    ]
    assert thin.notes == (
        "thinned: one session of 2, 2 of 3 requests",
        "stretched: time between arrivals times 10",
    )


def test_sessions_are_dealt_over_models_and_stay_together(tmp_path: Path) -> None:
    dealt = spread(read_traces([write(tmp_path, "mooncake.jsonl", MOONCAKE)]), {"a": 1, "b": 1})
    assert [call.model for call in dealt.calls] == ["a", "b", "a"]
    assert list(dealt.settings.models) == ["a", "b"]


def test_a_popular_model_gets_more_of_the_sessions() -> None:
    calls = tuple(Call(number=n, at_us=n, model="x") for n in range(1, 9))
    workload = Workload(calls=calls, settings=SchedulerSettings(models={"x": ModelSettings()}))
    dealt = spread(workload, {"a": 5, "b": 2, "c": 1})
    assert "".join(call.model for call in dealt.calls) == "abaacaba"
    assert dealt.notes == ("spread: sessions dealt over a (5), b (2), c",)


def test_a_workload_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    workload = first(read_traces([write(tmp_path, "mooncake.jsonl", MOONCAKE)]), 2)
    write_workload(workload, tmp_path / "w.ndjson")
    assert read_workload(tmp_path / "w.ndjson") == workload
    with pytest.raises(WorkloadError, match="is no workload"):
        read_workload(tmp_path / "mooncake.jsonl")
