"""Write a data set in which a sample's token is its own number: `python write_data.py FILE SAMPLES`."""

import sys

import numpy as np
from mindspore.mindrecord import FileWriter

writer = FileWriter(sys.argv[1], 1, overwrite=True)
writer.add_schema({"input_ids": {"type": "int32", "shape": [1]}, "x": {"type": "float32", "shape": [8]}}, "tiny")
random = np.random.RandomState(5)
rows = range(int(sys.argv[2]))
writer.write_raw_data([
    {"input_ids": np.array([row], np.int32), "x": random.randn(8).astype(np.float32)} for row in rows
])  # fmt: skip
writer.commit()
