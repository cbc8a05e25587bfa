"""llama-server's argv and `--help`, read by llama.cpp's own parser inside the xllamacpp wheel.

The wheel offers Python attributes for parameters, but no command line. llama.cpp's parser is linked into it all the
same and its symbol is exported, so this module calls that one function. What the embedded server accepts, refuses,
prints under `--help` and reads from `LLAMA_ARG_*` is then what this llama.cpp does, and no list of options has to keep
step.

Counterpart: `router.embedded`, which serves with the parameters that come out. Does not know about servers or signals.

Three things used here are not the wheel's public interface: the symbol, where a CommonParams object keeps its C++
struct, and the number of the server in llama.cpp's enum of programs. Each is found and proved at run time; a wheel in
which one has changed raises UnknownWheel before any foreign memory is written.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

PARSE_SYMBOL = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
"""bool common_params_parse(int argc, char ** argv, common_params &, llama_example, void (*)(int, char **))"""

PROGRAMS_MAX = 64
"""llama.cpp's enum of programs has about 25 members."""

SERVER_PORT = 8080
"""llama-server's default. The wheel's own is 0, a random port."""


class UnknownWheel(Exception):
    """The installed xllamacpp is not built as this module expects; the text says what differs."""


class Refused(Exception):
    """llama.cpp's parser refused the arguments, and has said why on stderr."""


def parse(xllamacpp: ModuleType, argv: Sequence[str]) -> Any:
    """The `xllamacpp.CommonParams` that llama-server would make of `argv` (program name first) and the environment.

    `--help`, `--version` and their like print and end the process with exit code 0, as llama-server does.

    Raises:
        Refused: an argument is unknown, or its value is bad.
        UnknownWheel: see the module's text.
    """
    parser = _Parser(xllamacpp)
    params = xllamacpp.CommonParams()
    params.port = SERVER_PORT
    if not parser.parse_into(params, argv, program=parser.server_program()):
        raise Refused
    return params


class _Parser:
    """llama.cpp's `common_params_parse`, as exported by the loaded wheel."""

    def __init__(self, xllamacpp: ModuleType) -> None:
        self._new_params = xllamacpp.CommonParams
        try:
            self._parse = ctypes.CDLL(xllamacpp.xllamacpp.__file__)[PARSE_SYMBOL]
        except AttributeError:
            raise UnknownWheel(f"it does not export {PARSE_SYMBOL}") from None
        self._parse.restype = ctypes.c_bool

    def parse_into(self, params: Any, argv: Sequence[str], *, program: int) -> bool:
        """Overwrite in `params` what `argv` and the environment name. False if the parser refused."""
        words = [os.fsencode(word) for word in argv]
        c_argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        return bool(self._parse(len(words), c_argv, ctypes.c_void_p(_struct_address(params)), program, None))

    def server_program(self) -> int:
        """The server's number in `enum llama_example`, which moves whenever llama.cpp gains a program.

        The server alone starts from "automatic" slots (-1); that default tells it from all other programs.
        """
        with _without_llama_environment():
            for program in range(PROGRAMS_MAX):
                params = self._new_params()
                self.parse_into(params, ["probe", "--model", "probe"], program=program)
                if params.n_parallel == -1:
                    return program
        raise UnknownWheel("none of llama.cpp's programs in it defaults to automatic slots, as llama-server does")


def _struct_address(params: Any) -> int:
    """Where the C++ struct of a CommonParams object begins: right behind the Python object's header.

    Proved by its first member, `n_predict`: two values set through Python must show up there.
    """
    address = id(params) + object.__basicsize__
    first_member = ctypes.c_int32.from_address(address)
    value_before = params.n_predict
    seen = []
    for value in (0x5EED_0001, 0x5EED_0002):
        params.n_predict = value
        seen.append(first_member.value == value)
    params.n_predict = value_before
    if not all(seen):
        raise UnknownWheel("its CommonParams does not begin with n_predict")
    return address


@contextmanager
def _without_llama_environment() -> Iterator[None]:
    """Hide LLAMA_* variables: the parser reads them, and a probe must see the defaults."""
    hidden = {name: value for name, value in os.environ.items() if name.startswith("LLAMA_")}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
