"""The language of the engine `matrix`: expressions of models that may be loaded together, and what they expand to.

    (g | q) & v       ->  {g, v}, {q, v}
    +base & x         ->  every combination of the set `base`, each with x
    a & +auto:orphans ->  a with each model that no expression names, one at a time

`&` binds tighter than `|`. A name is a var or a model; of two with one name the var counts. Text in, combinations or
mistakes out: its counterpart `matrix.py` never sees an expression, for all of them are expanded when the configuration
is read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from eventlog.settings import MatrixSet

ORPHANS = "auto:orphans"
"""The set that is made of all models that no expression names, unless the owner defines one of that name."""

COMBINATIONS_MAX = 2_000
"""More combinations than this are a mistake: the scheduler looks at all of them for each load."""

NAME = r"[A-Za-z0-9._-]+"
VAR = re.compile(r"[A-Za-z0-9.-]{1,32}")
_TOKEN = re.compile(rf"\s*(?:(?P<ref>\+\s*(?:{NAME}|:)*)|(?P<name>(?:{NAME}|:)+)|(?P<sign>[&|()])|(?P<other>\S))")


class ExpressionError(ValueError):
    """A mistake in an expression: what is wrong, and where. `position` counts characters from 0."""

    def __init__(self, message: str, text: str, position: int, nearest: str = "") -> None:
        self.message, self.text, self.position, self.nearest = message, text, position, nearest
        super().__init__(f"at character {position + 1}: {message}\n    {text}\n    {' ' * position}^")


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """A model, or the var of one."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Reference:
    """Another set."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Together:
    """All of these."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of these."""

    parts: tuple["Node", ...]


Node = Leaf | Reference | Together | Either


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


_END = "the end"
_OPERAND = 'a model, a var, "+" and the name of a set, or "("'


def parse(text: str) -> Node:
    """The tree of an expression. Raises ExpressionError."""
    tokens = list(_tokens(text))
    reader = _Reader(text, tokens)
    node = reader.either()
    found = reader.peek()
    if found.kind != "end":
        raise reader.expected('"&", "|" or the end' if found.text != ")" else '"&", "|" or the end (no "(" is open)')
    return node


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or ""
        at = match.start(kind)
        if kind == "other":
            message = f"{match[kind]!r} has no meaning here; a model whose name holds it needs a var"
            raise ExpressionError(message, text, at)
        yield _Token(kind, match[kind], at)
        position = match.end()
    yield _Token("end", _END, len(text.rstrip()))


class _Reader:
    def __init__(self, text: str, tokens: Sequence[_Token]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def expected(self, what: str) -> ExpressionError:
        found = self.peek()
        shown = found.text if found.kind == "end" else repr(found.text)
        return ExpressionError(f"expected {what}, found {shown}", self.text, found.position)

    def either(self) -> Node:
        parts = [self.together()]
        while self.peek().text == "|":
            self.at += 1
            parts.append(self.together())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def together(self) -> Node:
        parts = [self.operand()]
        while self.peek().text == "&":
            self.at += 1
            parts.append(self.operand())
        return parts[0] if len(parts) == 1 else Together(tuple(parts))

    def operand(self) -> Node:
        token = self.peek()
        if token.kind == "name":
            self.at += 1
            if ":" in token.text:
                message = f"only a reference (+set) may hold a colon; write {token.text!r} under vars with a short name"
                raise ExpressionError(message, self.text, token.position + token.text.index(":"))
            return Leaf(token.text, token.position)
        if token.kind == "ref":
            name = token.text[1:].strip()
            if not name:
                self.at += 1
                raise self.expected('the name of a set after "+"')
            self.at += 1
            return Reference(name, token.position)
        if token.text == "(":
            self.at += 1
            inner = self.either()
            if self.peek().text != ")":
                raise self.expected('"&", "|" or ")"')
            self.at += 1
            return inner
        raise self.expected(_OPERAND)


# --- expanding ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Expanded:
    """All sets of a matrix as combinations, or what is wrong with them."""

    sets: tuple[MatrixSet, ...] = ()
    mistakes: list[tuple[str, ExpressionError]] = field(default_factory=list)
    """Name of the set, and the mistake."""
    note: str = ""
    """What became of `auto:orphans`, where a set refers to it."""


def expand(sets: Mapping[str, str], variables: Mapping[str, str], models: Sequence[str]) -> Expanded:
    """Every set, in the order of definition; `variables` name models that exist."""
    expanded = Expanded()
    trees: dict[str, Node] = {}
    for name, text in sets.items():
        try:
            trees[name] = parse(text)
        except ExpressionError as error:
            expanded.mistakes.append((name, error))
    work = _Expansion(trees, sets, variables, models)
    for name, tree in trees.items():
        for leaf in _leaves(tree):
            known = work.model_of(leaf) if isinstance(leaf, Leaf) else leaf.name in (*sets, ORPHANS)
            if not known:
                expanded.mistakes.append((name, work.unknown(name, leaf)))
    if not expanded.mistakes:
        try:
            expanded.sets = tuple(MatrixSet(name=name, combinations=work.combinations_of(name)) for name in trees)
        except ExpressionError as error:
            expanded.mistakes.append((work.path[0], error))
    if any(isinstance(leaf, Reference) and leaf.name == ORPHANS for tree in trees.values() for leaf in _leaves(tree)):
        expanded.note = work.said_of_orphans()
    return expanded


def _leaves(node: Node) -> Iterator[Leaf | Reference]:
    if isinstance(node, Leaf | Reference):
        yield node
    else:
        for part in node.parts:
            yield from _leaves(part)


Combinations = dict[frozenset[str], None]
"""An ordered set."""


class _Expansion:
    def __init__(
        self, trees: Mapping[str, Node], texts: Mapping[str, str], variables: Mapping[str, str], models: Sequence[str]
    ) -> None:
        self.trees, self.texts, self.variables, self.models = trees, texts, variables, models
        self.done: dict[str, Combinations] = {}
        self.path: list[str] = []
        """Sets that are being expanded, each for the one before it."""
        self.count = 0

    def combinations_of(self, name: str) -> tuple[tuple[str, ...], ...]:
        self.path = []
        found = self._of_set(name)
        self.count += len(found)
        if self.count > COMBINATIONS_MAX:
            self.path = [name]
            raise self._too_many()
        return tuple(tuple(sorted(one)) for one in found)

    def orphans(self) -> list[str]:
        named = [
            self.model_of(leaf) for tree in self.trees.values() for leaf in _leaves(tree) if isinstance(leaf, Leaf)
        ]
        return sorted(model for model in self.models if model not in named)

    def said_of_orphans(self) -> str:
        if ORPHANS in self.trees:
            return f'matrix: set "{ORPHANS}" is user-defined; orphan synthesis disabled'
        orphans = self.orphans()
        if not orphans:
            return f'matrix: synthesized set "{ORPHANS}" is empty; +{ORPHANS} terms dropped'
        return f'matrix: synthesized set "{ORPHANS}" = ({" | ".join(orphans)})'

    def model_of(self, leaf: Leaf) -> str:
        """The model that a leaf means; "" when there is none."""
        return self.variables.get(leaf.name) or (leaf.name if leaf.name in self.models else "")

    def unknown(self, name: str, leaf: Leaf | Reference) -> ExpressionError:
        if isinstance(leaf, Leaf):
            message, known = f"there is no model and no var {leaf.name!r}", [*self.variables, *self.models]
        else:
            message, known = f"there is no set {leaf.name!r}", [*self.trees, ORPHANS]
        near = get_close_matches(leaf.name, known, 1)
        return ExpressionError(message, self.texts[name], leaf.position, near[0] if near else "")

    def _of_set(self, name: str) -> Combinations:
        if name not in self.done:
            if name == ORPHANS and name not in self.trees:
                self.done[name] = {frozenset((model,)): None for model in self.orphans()}
            else:
                self.path.append(name)
                self.done[name] = self._of(self.trees[name])
                self.path.pop()
        return self.done[name]

    def _of(self, node: Node) -> Combinations:
        """Left to right. Nothing at all stands for an empty `auto:orphans`, and is as if it were not written."""
        if isinstance(node, Leaf):
            return {frozenset((self.model_of(node),)): None}
        if isinstance(node, Reference):
            if node.name in self.path:
                circle = " -> ".join([*self.path[self.path.index(node.name) :], node.name])
                message = f"the sets go round in a circle: {circle}"
                raise ExpressionError(message, self.texts[self.path[-1]], node.position)
            return self._of_set(node.name)
        found: Combinations = {}
        for part in node.parts:
            others = self._of(part)
            if isinstance(node, Either):
                found = {**found, **others}
            elif found and others:
                if len(found) * len(others) > 50 * COMBINATIONS_MAX:
                    raise self._too_many()
                found = {one | other: None for one in found for other in others}
            else:
                found = found or others
            if len(found) > COMBINATIONS_MAX:
                raise self._too_many()
        return found

    def _too_many(self) -> ExpressionError:
        message = (
            f"the sets expand to more than {COMBINATIONS_MAX:,} combinations; "
            "use fewer alternatives, or the engine capacity, which needs no list"
        )
        return ExpressionError(message, self.texts[self.path[-1]], 0)
