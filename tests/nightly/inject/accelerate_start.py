"""Start a script of Accelerate in many projects, and print how each start began.

    python accelerate_start.py < STARTS

A line of STARTS is JSON: `tree`, the project, and `resume`, the folder that `load_state` is given. Each answer is a
line: the step that the script had saved, and whether the optimizer holds what was saved; or the error.
"""

import json
import sys

answers, sys.stdout = sys.stdout, sys.stderr

import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import ProjectConfiguration  # noqa: E402


class Progress:
    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def start(tree, resume):
    project = ProjectConfiguration(project_dir=tree, automatic_checkpoint_naming=True)
    accelerator = Accelerator(project_config=project, cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(torch.arange(40.0).reshape(-1, 1), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    try:
        accelerator.load_state(resume)
    except Exception as error:  # noqa: BLE001  whatever it stops with is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return {"step": progress.step, "optimizer": len(optimizer.optimizer.state) > 0}


torch.set_num_threads(1)
for line in sys.stdin:
    print(json.dumps(start(**json.loads(line))), file=answers, flush=True)
