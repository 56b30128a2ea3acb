"""Start Hugging Face's Trainer in many trees, and print how each start began.

    python hf_start.py MICRO < STARTS

A line of STARTS is JSON: `tree`, and `resume`, what `train` is given. Each answer is a line: the step, whether the
optimizer and the schedule hold what was saved, and the first batch; or the error.
"""

import json
import sys

answers, sys.stdout = sys.stdout, sys.stderr

import torch  # noqa: E402
from hf_run import Config, Data, Small  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402


class FirstStep(TrainerCallback):
    """Notes how training begins, and ends it after a step."""

    told = None

    def on_train_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **beside):
        self.told = {
            "step": state.global_step,
            "optimizer": len(optimizer.state) > 0,
            "schedule": lr_scheduler.last_epoch,
        }

    def on_step_end(self, args, state, control, **beside):
        control.should_training_stop = True


def start(tree, resume):
    first, model = FirstStep(), Small(Config())
    arguments = TrainingArguments(
        output_dir=tree, per_device_train_batch_size=int(sys.argv[1]), max_steps=30, save_strategy="no",
        logging_strategy="no", learning_rate=0.01, use_cpu=True, report_to=[], seed=7, disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=Data(), callbacks=[first])
    try:
        trainer.train(resume_from_checkpoint=resume)
    except Exception as error:  # noqa: BLE001  whatever it stops with is the answer
        return {"error": f"{type(error).__name__}: {error}"}
    return {**first.told, "read": model.read}


torch.set_num_threads(1)
for line in sys.stdin:
    print(json.dumps(start(**json.loads(line))), file=answers, flush=True)
