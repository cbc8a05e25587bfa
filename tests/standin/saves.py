"""Slots saved to files and restored from them, as llama-server does it, or not quite."""

import json
import os
import time
from typing import Any

from tests.standin.generate import Service
from tests.standin.script import Script
from tests.standin.wire import Request

BYTES_PER_TOKEN = 1024
MAGIC = b"standin "


def save(service: Service, script: Script, folder: str, slot: int, name: str) -> tuple[int, Any]:
    """Writes what a slot holds. Takes `save_s`, with half of the file written; a fault comes after that."""
    prompt = "somebody else" if script.save_how == "empty" else service.slots.prompts[slot]
    tokens = len(prompt) // 4
    data = MAGIC + json.dumps(prompt).encode()
    data = data.ljust(max(len(data), BYTES_PER_TOKEN * tokens))
    service.ledger.write("save_begun", slot=slot, file=name)
    with open(os.path.join(folder, name), "wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        time.sleep(script.save_s)
        if script.save_how == "die":
            service.die(script)
        if script.save_how == "error":
            return 500, {"error": {"code": 500, "message": "told to fail", "type": "server_error"}}
        if script.save_how != "short":
            file.write(data[len(data) // 2 :])
    service.ledger.write("save_done", slot=slot, file=name, tokens=tokens)
    return 200, {"id_slot": slot, "filename": name, "n_saved": tokens, "n_written": len(data), "timings": {}}


def restore(service: Service, script: Script, folder: str, slot: int, name: str) -> tuple[int, Any]:
    """Reads a file into a slot. One that is cut short ends the process, as it does with llama-server."""
    service.ledger.write("restore_begun", slot=slot, file=name)
    time.sleep(script.restore_s)
    with open(os.path.join(folder, name), "rb") as file:
        data = file.read()
    if script.restore_how == "error" or not data.startswith(MAGIC):
        return 400, {"error": {"code": 400, "message": "Unable to restore slot", "type": "invalid_request_error"}}
    try:
        prompt = json.loads(data[len(MAGIC) :])
    except ValueError:
        service.die(script)
    if script.restore_how == "die":
        service.die(script)
    service.slots.prompts[slot] = "" if script.restore_how == "nothing" else prompt
    service.ledger.write("restore_done", slot=slot, file=name)
    return 200, {"id_slot": slot, "filename": name, "n_restored": len(prompt) // 4, "n_read": len(data), "timings": {}}


def move(service: Service, script: Script, folder: str, request: Request) -> tuple[int, Any] | None:
    """POST /slots/N?action=save|restore with a file name; None for anything else."""
    number = request.path.removeprefix("/v1").removeprefix("/slots/")
    action = {"save": save, "restore": restore}.get(request.query.get("action", ""))
    if request.method != "POST" or not number.isdigit() or action is None:
        return None
    if not folder:
        return 501, {"error": {"code": 501, "message": "start it with --slot-save-path", "type": "not_supported_error"}}
    name = json.loads(request.body).get("filename", "")
    if not name or "/" in name:
        return 400, {"error": {"code": 400, "message": "Invalid filename", "type": "invalid_request_error"}}
    return action(service, script, folder, int(number), name)
