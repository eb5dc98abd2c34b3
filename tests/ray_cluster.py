"""A Ray cluster of real raylets on this machine.

`python ray_cluster.py NODES` prints its addresses and the ids of its nodes, and runs it until its
standard input is closed. Lines `add`, `remove ID` and `drain ID SECONDS` change it. With the word
`jobs` after NODES it takes jobs, which needs ray[default].
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HEALTH = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
    "health_check_timeout_ms": 500, "health_check_failure_threshold": 2,
}  # fmt: skip


class RayCluster:
    """The cluster's process, as tests use it; `environment` is what programs need to use it."""

    def __init__(self, folder, nodes=3, jobs=False):
        token = folder / "token"
        token.write_text("t" * 48)
        token.chmod(0o600)
        self.environment = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
            "XDG_STATE_HOME": str(folder / "state"), "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(nodes), *(["jobs"] if jobs else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **self.environment}, start_new_session=True,
        )  # fmt: skip
        about = json.loads(self.process.stdout.readline())
        self.environment["RAY_ADDRESS"], self.nodes = about["address"], about["nodes"]
        self.dashboard = about["dashboard"]

    def tell(self, *words):
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().split() == [words[0]]

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def main():
    from ray._raylet import GcsClient
    from ray.cluster_utils import Cluster

    count, takes_jobs = int(sys.argv[1]), "jobs" in sys.argv[2:]
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2, "include_dashboard": takes_jobs, "_system_config": HEALTH,
            "object_store_memory": 80 << 20, "dashboard_port": 0,
            "dashboard_agent_listen_port": free_port(),
        },
    )  # fmt: skip
    nodes = [cluster.head_node]
    nodes += [cluster.add_node(num_cpus=2, object_store_memory=80 << 20) for _ in range(count - 1)]
    about = {"address": cluster.address, "dashboard": cluster.webui_url}
    print(json.dumps(about | {"nodes": [node.node_id for node in nodes]}), flush=True)
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
