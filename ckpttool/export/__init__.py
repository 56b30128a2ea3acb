"""Export of the weights of a checkpoint as safetensors, without torch and the trainer, in bounded memory.

The command is `ckpttool export`. Start reading in `verbs.py`. A trainer's source of weights (`Trainer.weights`) says
where the elements of each tensor are (`core/domain/weights.py`); here they are checked (`cover`), read in bands
(`bands`, `sources`) and written (`shards`).
"""

from __future__ import annotations

from ckpttool.core.extensions import Feature

FEATURE = Feature(answers={"export": "ckpttool.export.answers"})
