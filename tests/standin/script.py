"""What a stand-in is told to do wrong, and where it is told.

Later sources win: the defaults below, `STANDIN_<NAME>` in the environment, the JSON object in the model file, the JSON
object under `standin` in a request (a form field of that name in an upload). Times are seconds, counts begin at 1 and
0 means never. A chunk is one data frame of a stream that carries text.
"""

import json
from collections.abc import Mapping
from typing import Any


class Script:
    """One set of orders. Raises ValueError for a name or a type it does not know."""

    # --- loading
    load_s: float = 0.0
    load_gate: str = ""
    """It is not loaded before this file exists."""
    load_progress: bool = False
    """Prints a line every 100 ms while it loads."""
    load_cpu: bool = False
    """Burns CPU while it loads."""
    load_silent_socket: bool = False
    """Listens only once the model is loaded."""
    fail: str = ""
    """How the load ends: `oom`, `missing`, `magic`, `flag`, `exit:N`, a signal such as `SIGSEGV`, or never: `stall`."""
    faulty_loads: int = 0
    """Faults of loading and dying concern only the first so many processes of this model; 0 means all of them."""

    # --- dying in service
    die: str = "SIGSEGV"
    """How: `exit:N` or a signal."""
    die_at_request: int = 0
    """On the arrival of the so-many-th generation."""
    die_at_chunk: int = 0
    """Instead of sending that chunk; an answer that does not stream dies at its first."""
    die_on: str = ""
    """When a body contains this text."""
    die_once: str = ""
    """On the arrival of a request with this mark, unless a process has died of the mark already."""
    last_words: str = ""
    """Lines printed to stderr just before."""

    # --- stopping
    ignore_term: bool = False
    exit_delay_s: float = 0.0
    grandchild: bool = False
    """Leaves a forked process behind that ignores SIGTERM."""
    gpu_lag_s: float = 0.0
    """The memory of the GPU comes back so long after the process is gone."""

    # --- answering
    tokens: int = 8
    gap_s: float = 0.0
    first_byte_s: float = 0.0
    prompt_s: float = 0.0
    """It says that it read a prompt for so long; 0: as long as it did (`first_byte_s`)."""
    take_s: float = 0.0
    """A request is looked at only so long after it came, whatever has become of its client."""
    gate: str = ""
    """Its second chunk waits until this file exists."""
    chunk_bytes: int = 0
    """Pads the text of each chunk to this size."""
    ping_s: float = 0.0
    """SSE comments when nothing was sent for so long; they open the stream before its first chunk."""
    silent_at_chunk: int = 0
    """No chunk from this one on, while the process looks healthy."""
    stuck: bool = False
    """Never begins to answer, while the process looks healthy."""
    close_at_chunk: int = 0
    """Ends the connection instead of sending that chunk."""
    close: str = "fin"
    """How: `fin` without the end of the body, `rst`, `clean` with the end of the body but no last event, or `half`:
    half of the body that an answer in one piece has promised."""
    status: int = 0
    """Answers this error status."""
    error: str = "the stand-in was told to fail"
    release_delay_s: float = 0.0
    """The slot of a client that left is busy for so long, as that of a server in the middle of a batch."""
    wedged: bool = False
    """The slot of a client that left is never free again."""
    save_s: float = 0.0
    """A slot takes so long to be saved; half of the file is there from the beginning."""
    save_how: str = ""
    """What goes wrong with it: `error`, `short` (less than it says), `empty` (another conversation's), `die`."""
    restore_s: float = 0.0
    restore_how: str = ""
    """What goes wrong with a restore: `error`, `nothing` (it says that all is well), `die`."""
    tag: str = ""
    """Copied into the ledger, to find a request again."""

    def __init__(self, **orders: Any) -> None:
        for name, value in orders.items():
            default = getattr(type(self), name, None)
            if default is None or name.startswith("_") or callable(default):
                raise ValueError(f"stand-in script: unknown order {name!r}")
            wanted = type(default)
            if wanted is float and type(value) is int:
                value = float(value)
            if type(value) is not wanted:
                raise ValueError(f"stand-in script: {name} is {value!r}, wanted {wanted.__name__}")
            setattr(self, name, value)

    def merged(self, orders: Mapping[str, Any]) -> "Script":
        """This script with some orders replaced."""
        return Script(**{**vars(self), **orders})


def from_environment(environ: Mapping[str, str]) -> Script:
    """Reads STANDIN_* as JSON scalars; a plain word is text. Variables that are no orders are left alone."""
    orders: dict[str, Any] = {}
    for name, default in vars(Script).items():
        text = environ.get(f"STANDIN_{name.upper()}")
        if text is not None and isinstance(default, (bool, int, float, str)) and not name.startswith("_"):
            orders[name] = text if isinstance(default, str) else json.loads(text)
    return Script(**orders)


def from_model_file(content: bytes, base: Script) -> Script:
    """The script in a model file; a file that is no JSON object orders nothing."""
    if not content.lstrip().startswith(b"{"):
        return base
    return base.merged(json.loads(content))
