"""Network policies: the pods of a run talk to each other, and to nothing else but what they need.

Workers accept each other on any port, so ports between the pods of a run are not limited.
"""

from __future__ import annotations

from typing import Final

from holdfast.clusters.render.objects import AGENT, COORDINATOR, Document, labels, manifest
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import METRICS_PORT

MONITORING: Final = "holdfast-monitoring"
"""The namespace of Prometheus."""
_DNS_CACHE: Final = "169.254.20.10/32"
"""Where NodeLocal DNSCache listens on every node."""
_METADATA: Final = "169.254.169.254/32"
"""Where clouds give credentials of the node to anyone on it."""
_STATUS_PORT: Final = 10443
"""Where Kubeflow Trainer takes the progress of a TrainJob."""
DNS: Final[Document] = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        {"ipBlock": {"cidr": _DNS_CACHE}},
    ],
    "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
}
"""Lets pods look up names."""
API: Final[Document] = {
    "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [_METADATA]}}],
    "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 6443}],
}
"""Lets pods talk to Kubernetes: the address of its server is the cluster's own, and no selector
finds it."""


def network(plan: RenderPlan) -> list[Document]:
    """All network policies of a run."""
    run = {"podSelector": {"matchLabels": labels(plan)}}
    both = {"policyTypes": ["Ingress", "Egress"]}
    among = {"ingress": [{"from": [run]}], "egress": [{"to": [run]}, DNS]}
    prometheus = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": MONITORING}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    }
    policies = [
        _policy(plan, "deny", {"podSelector": {}, **both}),
        _policy(plan, "run", {**run, **both, **among}),
        _policy(plan, "api", _outgoing(plan, COORDINATOR, API)),
    ]
    if plan.has_metrics:
        policies.append(_policy(plan, "metrics", _incoming(plan, prometheus, METRICS_PORT)))
    return policies


def operator_access(plan: RenderPlan, operator: str, port: int) -> Document:
    """Lets an operator, in whatever namespace it is, connect to a port of the pods."""
    return _policy(plan, "operator", _incoming(plan, _anywhere(name=operator), port))


def trainer_access(plan: RenderPlan) -> Document:
    """Lets agents tell Kubeflow Trainer, in whatever namespace it is, how far the run is."""
    manager = _anywhere(name="trainer", component="manager")
    ports = [{"protocol": "TCP", "port": _STATUS_PORT}]
    return _policy(plan, "progress", _outgoing(plan, AGENT, {"to": [manager], "ports": ports}))


def _anywhere(**names: str) -> Document:
    """The pods of any namespace that have some labels."""
    found = {f"app.kubernetes.io/{key}": name for key, name in names.items()}
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": found}}


def _incoming(plan: RenderPlan, source: Document, port: int) -> Document:
    """Connections to a port of the coordinator's pods."""
    return {
        "podSelector": {"matchLabels": labels(plan, COORDINATOR)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [source], "ports": [{"protocol": "TCP", "port": port}]}],
    }


def _outgoing(plan: RenderPlan, component: str, allowed: Document) -> Document:
    """Connections of the pods of a component."""
    return {
        "podSelector": {"matchLabels": labels(plan, component)},
        "policyTypes": ["Egress"],
        "egress": [allowed],
    }


def _policy(plan: RenderPlan, suffix: str, spec: Document) -> Document:
    return manifest(plan, "NetworkPolicy", "networking.k8s.io/v1", plan.named(suffix), spec=spec)
