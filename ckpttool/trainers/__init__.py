"""What each trainer does: where its files lie, what its records mean, how it is told to load."""

FINDINGS = (
    "ckpttool.trainers.findings:TrainersCode",
    "ckpttool.trainers.mindformers.findings:MindFormersCode",
    "ckpttool.trainers.megatron.findings:MegatronCode",
    "ckpttool.trainers.deepspeed.findings:DeepSpeedCode",
    "ckpttool.trainers.huggingface.findings:HuggingFaceCode",
)
"""`"module:name"` of each class of rows of what only trainers find, as `Feature.findings` is one of a feature's."""
