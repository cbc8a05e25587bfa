"""Whether the GPUs that models are pinned to exist, and whether every model finds room on its own.

The number of GPUs is decided by `router.gpus.count_gpus`; what `gpus` means is read by `router.gpu_pins`.
"""

from collections.abc import Sequence
from typing import Literal

from router.models import Draft
from router.problems import Findings, Problem
from router.settings import Values


def check_gpus(
    drafts: Sequence[Draft],
    gpus: int,
    count_from: Literal["config", "nvml", "pins"],
    values: Values,
    nvml_gpus: int | None,
    cap: int,
    file: str,
    findings: Findings,
) -> None:
    counted = {"config": "NUM_GPUS says", "nvml": "NVML sees", "pins": "the pins suggest"}[count_from]
    there = f"{counted} {gpus} GPU{'s' if gpus != 1 else ''}, numbered from 0"
    for draft in drafts:
        missing = [gpu for gpu in draft.entry.pins.named if gpu >= gpus]
        if missing:
            message = f"GPU {', '.join(map(str, missing))} does not exist, so this model can never be loaded"
            section = f"LLM.{draft.name}"
            value = ", ".join(map(str, draft.entry.pins.named))
            findings.add(Problem(message, file=file, section=section, key="gpus", value=value, allowed=there))
    if count_from == "pins" and any(
        draft.entry.pins.every or max(draft.entry.pins.named, default=0) for draft in drafts
    ):
        message = f"NVML is not there, so the number of GPUs is guessed from the pins: {gpus}; set NUM_GPUS to be sure"
        findings.warn(Problem(message, file=file, section="ROUTER"))
    if nvml_gpus and values["NUM_GPUS"] and values["NUM_GPUS"] > nvml_gpus:
        findings.warn(values.problem("NUM_GPUS", f"NVML sees {nvml_gpus} only"))
    if cap:
        _check_persistent(drafts, gpus, cap, file, findings)


def _check_persistent(drafts: Sequence[Draft], gpus: int, cap: int, file: str, findings: Findings) -> None:
    """Models that are never evicted must leave room for every model that shares a GPU with them."""
    for draft in drafts:
        for gpu in draft.entry.pins.placed(gpus):
            pinned = [
                other.name
                for other in drafts
                if other is not draft and other.entry.persistent and gpu in other.entry.pins.placed(gpus)
            ]
            if len(pinned) >= cap:
                message = (
                    f"this model can never be loaded: GPU {gpu} takes {cap} model{'s' if cap != 1 else ''} "
                    f"(MAX_MODELS_PER_GPU) and is kept by {', '.join(map(repr, pinned[:cap]))}, which is persistent"
                )
                findings.add(Problem(message, file=file, section=f"LLM.{draft.name}", key="gpus"))
                break
