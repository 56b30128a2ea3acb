"""Support for each trainer: its file layout, its records, and the settings that load a save."""

FINDINGS = (
    "ckpttool.trainers.findings:TrainersCode",
    "ckpttool.trainers.export_findings:ExportCode",
    "ckpttool.trainers.mindformers.findings:MindFormersCode",
    "ckpttool.trainers.megatron.findings:MegatronCode",
    "ckpttool.trainers.deepspeed.findings:DeepSpeedCode",
    "ckpttool.trainers.huggingface.findings:HuggingFaceCode",
)
"""References (`"module:name"`) to the finding classes that only trainers have, as in `Feature.findings`."""
