"""Save with Orbax, or restore a step, and print as JSON what that found.

python orbax_run.py FOLDER save | restore STEP | latest
"""

import json
import sys

import numpy as np
import orbax.checkpoint as ocp

FOLDER, WHAT, *STEP = sys.argv[1:]
manager = ocp.CheckpointManager(FOLDER)


def state(step):
    chance = np.random.default_rng(step)
    return {"step": step, "kernel": chance.normal(size=(64, 32)).astype(np.float32)}


if WHAT == "save":
    for step in (10, 20, 30):
        manager.save(step, args=ocp.args.StandardSave(state(step)))
    manager.wait_until_finished()
    print(json.dumps({"latest": manager.latest_step()}))
elif WHAT == "latest":
    print(json.dumps({"latest": manager.latest_step()}))
else:
    try:
        found = manager.restore(int(STEP[0]), args=ocp.args.StandardRestore())
        right = np.array_equal(np.asarray(found["kernel"]), state(int(STEP[0]))["kernel"])
        print(json.dumps({"step": int(found["step"]), "right": bool(right)}))
    except Exception as error:  # noqa: BLE001  whatever it raises is the answer
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
