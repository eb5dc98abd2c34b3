"""A process with two nodes: `python node_process.py CREDENTIALS` prints their names."""

import json
import sys

from holdfast.runs.replication.node import ConsensusNode
from holdfast.wire.tls import Credentials

if __name__ == "__main__":
    credentials = Credentials.model_validate_json(sys.argv[1])
    nodes = [ConsensusNode("127.0.0.1", credentials, begins=False) for _ in range(2)]
    for node in nodes:
        node.start()
    print(json.dumps([node.name for node in nodes]), flush=True)
    sys.stdin.read()
