"""Trainers: the layout of their files, the meaning of their records, and the settings that load a save."""

FINDINGS = (
    "ckpttool.trainers.findings:TrainersCode",
    "ckpttool.trainers.mindformers.findings:MindFormersCode",
    "ckpttool.trainers.megatron.findings:MegatronCode",
    "ckpttool.trainers.deepspeed.findings:DeepSpeedCode",
    "ckpttool.trainers.huggingface.findings:HuggingFaceCode",
)
"""`"module:name"` of each class of trainers' own findings, like `Feature.findings` of a feature."""
