"""What ckpttool knows about each trainer: the layout of the files, the records, and the settings that load a save."""

FINDINGS = (
    "ckpttool.trainers.findings:TrainersCode",
    "ckpttool.trainers.mindformers.findings:MindFormersCode",
    "ckpttool.trainers.megatron.findings:MegatronCode",
    "ckpttool.trainers.deepspeed.findings:DeepSpeedCode",
    "ckpttool.trainers.huggingface.findings:HuggingFaceCode",
)
"""`"module:name"` of each class of findings that only trainers have, like `Feature.findings` of a feature."""
