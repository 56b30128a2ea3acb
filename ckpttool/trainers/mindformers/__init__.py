"""MindFormers (MindSpore Transformers), the main trainer, with all the abilities that ckpttool knows."""

from __future__ import annotations

from ckpttool.trainers.base import Trainer

TRAINER = Trainer(
    name="mindformers",
    title="MindFormers",
    records=(
        r"(?:meta|common|metadata|param_name_map)\.json|dataset_state_rank[0-9]+\.json"
        r"|latest_checkpointed_iteration\.txt"
    ),
    only_after_saves=(
        r"(?:meta|common|param_name_map|health_ckpts)\.json|dataset_state_rank[0-9]+\.json"
        r"|latest_checkpointed_iteration\.txt"
    ),
    beside_saves=("health_ckpts.json", "resume_record/latest_checkpointed_iteration.txt"),
    places=("checkpoint", "output/checkpoint", "unified_checkpoint", "output/unified_checkpoint"),
    layout_names=("mindformers-unified", "mindformers-iteration", "mindformers-rank"),
    layouts_at=(
        "ckpttool.trainers.mindformers.layouts.names:UNIFIED",
        "ckpttool.trainers.mindformers.layouts.names:ITERATION",
        "ckpttool.trainers.mindformers.layouts.names:RANK",
    ),
    log_formats_at=(
        "ckpttool.trainers.mindformers.pynative.log:PyNativeLog",
        "ckpttool.trainers.mindformers.logs.text:MindFormers",
    ),
    restores_random_state=False,
    log_places_at="ckpttool.trainers.mindformers.logs.places:MindFormersLogs",
    health_file_at="ckpttool.trainers.mindformers.health_file:MindFormersHealthFile",
    configs_at="ckpttool.trainers.mindformers.config:TrainConfigs",
    intervals_at="ckpttool.trainers.mindformers.intervals:intervals",
    save_interval_at="ckpttool.trainers.mindformers.intervals:save_interval",
    launch_at="ckpttool.trainers.mindformers.launch:MindFormersLaunch",
    words_at="ckpttool.trainers.mindformers.policies:MindFormersWords",
    words_for_at="ckpttool.trainers.mindformers.pynative.words:words_for",
    asd_dialects_at=("ckpttool.trainers.mindformers.silent_errors:MONITOR",),
    scalars_at="ckpttool.trainers.mindformers.scalars:OWN",
    simulator_at="ckpttool.trainers.mindformers.simulator:MindFormersSimulator",
    evidence_at="ckpttool.trainers.mindformers.strategy:world_evidence",
    effects_at="ckpttool.trainers.mindformers.effects:effects",
    owned_at="ckpttool.trainers.mindformers.pynative.retention:owned",
    weights_at="ckpttool.trainers.mindformers.weights:weights",
)
