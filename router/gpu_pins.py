"""`gpus` of a model: which GPUs it counts on and is masked to.

Written as a number, a list of numbers, a list of such lists (one per replica), "all", "*" or -1 for every GPU, "none"
or "cpu" for no GPU, or with a UUID as NVML prints it (`GPU-...`) in the place of a number. Whether the numbers exist
can only be said once the number of GPUs is known, and that may hang on the highest pin: reading and placing are two
steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ALLOWED = (
    'a number, a list of numbers, a list of lists (one per replica), a UUID ("GPU-..."), "all", -1, "none" or "cpu"'
)

EVERY = ("all", "*")
NONE = ("none", "cpu")


class BadPin(ValueError):
    """`gpus` cannot be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Pins:
    """`gpus` as written. `every`: all GPUs there will be; `replicas`: one list per replica."""

    gpus: tuple[int, ...] = (0,)
    every: bool = False
    replicas: tuple[tuple[int, ...], ...] = ()

    @property
    def named(self) -> tuple[int, ...]:
        """The GPUs that are named by number, in order, each once."""
        return tuple(dict.fromkeys(gpu for group in (self.gpus, *self.replicas) for gpu in group))

    def placed(self, count: int) -> tuple[int, ...]:
        """The GPUs of this model, in mask order, where there are `count`."""
        return tuple(range(count)) if self.every else self.named


def read_pins(value: Any, uuids: Sequence[str] = ()) -> Pins:
    """`gpus` of config.json. Raises BadPin."""
    if (isinstance(value, str) and value.casefold() in EVERY) or (value == -1 and not isinstance(value, bool)):
        return Pins((), every=True)
    if isinstance(value, str) and value.casefold() in NONE:
        return Pins(())
    if not isinstance(value, list):
        return Pins((_gpu(value, uuids),))
    if not value:
        raise BadPin('an empty list says nothing: write "none" for the CPU, or leave `gpus` out for GPU 0')
    if any(isinstance(item, list) for item in value):
        if not all(isinstance(item, list) for item in value):
            raise BadPin("either every item is a list (one per replica) or none is")
        return Pins((), replicas=tuple(_group(item, uuids) for item in value))
    return Pins(_group(value, uuids))


def _group(items: list[Any], uuids: Sequence[str]) -> tuple[int, ...]:
    if not items:
        raise BadPin("a replica without a GPU cannot stand in a list of lists")
    gpus = tuple(_gpu(item, uuids) for item in items)
    twice = [gpu for gpu in dict.fromkeys(gpus) if gpus.count(gpu) > 1]
    if twice:
        raise BadPin(f"GPU {twice[0]} is named twice")
    return gpus


def _gpu(item: Any, uuids: Sequence[str]) -> int:
    if isinstance(item, str) and item.upper().startswith("GPU-"):
        found = [index for index, uuid in enumerate(uuids) if uuid.upper().startswith(item.upper())]
        if len(found) == 1:
            return found[0]
        known = ", ".join(uuids) or "NVML is not there, so that no UUID is known"
        raise BadPin(f"{'no' if not found else 'more than one'} GPU has the UUID {item!r}; there are: {known}")
    if isinstance(item, bool) or not isinstance(item, int):
        raise BadPin(f"{item!r} is not the number of a GPU")
    if item < 0:
        raise BadPin(f"{item} is not the number of a GPU; -1 alone, without a list, means all")
    if item > 1023:
        raise BadPin(f"GPU {item} cannot exist")
    return item
