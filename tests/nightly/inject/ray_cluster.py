"""Start a Ray cluster of three nodes of one core on this machine, tell of it as JSON, and end it with stdin."""

import json
import sys

from ray.cluster_utils import Cluster

cluster = Cluster()
nodes = [cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False) for _ in range(3)]
pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
print(json.dumps({"address": cluster.address, "raylets": pids}), flush=True)
sys.stdin.read()
cluster.shutdown()
