"""A Ray cluster of real raylets on this machine.

`python ray_cluster.py NODES` prints its address and the ids of its nodes, and runs it until its
standard input is closed. Lines `add`, `remove ID` and `drain ID SECONDS` change it.
"""

import json
import sys
import time

from ray._raylet import GcsClient
from ray.cluster_utils import Cluster

HEALTH = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
    "health_check_timeout_ms": 500, "health_check_failure_threshold": 2,
}  # fmt: skip


def main():
    count = int(sys.argv[1])
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2, "include_dashboard": False, "_system_config": HEALTH,
            "object_store_memory": 80 << 20,
        },
    )  # fmt: skip
    nodes = [cluster.head_node]
    nodes += [cluster.add_node(num_cpus=2, object_store_memory=80 << 20) for _ in range(count - 1)]
    print(json.dumps({"address": cluster.address, "nodes": [n.node_id for n in nodes]}), flush=True)
    for line in sys.stdin:
        word, *words = line.split()
        by_id = {node.node_id: node for node in cluster.list_all_nodes()}
        if word == "add":
            cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
        elif word == "remove":
            cluster.remove_node(by_id[words[0]], allow_graceful=False)
        elif word == "drain":
            deadline_ms = int(1000 * (time.time() + float(words[1])))
            GcsClient(address=cluster.address).drain_node(words[0], 2, "taken away", deadline_ms)
        print(word, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
