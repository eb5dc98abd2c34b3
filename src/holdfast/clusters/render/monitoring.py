"""Monitoring: a namespace with Prometheus, Grafana and the exporter of GPU metrics.

    DCGM exporter on each node with GPUs ─┐
    pods of runs with a port `metrics` ───┴─▶ Prometheus ─▶ Grafana

It is applied once for all runs of a namespace. Grafana's password is in the Secret `grafana`; the
token with which Prometheus reads the metrics of runs is in the Secret `metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.clusters.render.components import GPU_TAINT, POOL, toleration
from holdfast.clusters.render.kustomization import kustomization
from holdfast.clusters.render.network import API, DNS, MONITORING
from holdfast.clusters.render.objects import Document, Tree, yaml_of
from holdfast.clusters.render.plan import RenderPlan
from holdfast.clusters.render.pods import API_ACCESS, METRICS_PORT, OF_CONTAINER, OF_POD, api_access

_PROMETHEUS: Final = "prom/prometheus:v3.13.3"
_GRAFANA: Final = "grafana/grafana:12.4.4"
_DCGM: Final = "nvcr.io/nvidia/k8s/dcgm-exporter:4.6.0-4.8.3-distroless"
_PORTS: Final = {"prometheus": 9090, "grafana": 3000, "dcgm-exporter": 9400}
_USERS: Final = {"prometheus": 65534, "grafana": 472, "dcgm-exporter": 10001}
"""The users for which the images are made."""
_TOKEN: Final = "/etc/metrics"  # noqa: S105 - its directory
_KEPT: Final = "15d"
_DISK: Final = "20Gi"


def monitoring(plan: RenderPlan, shown: Tree) -> Tree:
    """The folder to apply besides an overlay.

    Args:
        plan: Plan of a run.
        shown: `rules.yaml` with alert rules, and `holdfast.json` with a dashboard.
    """
    files = {
        "namespace.yaml": [_namespace()],
        "prometheus.yaml": _prometheus(plan),
        "grafana.yaml": _grafana(),
        "dcgm-exporter.yaml": _dcgm(),
        "network.yaml": _network(plan),
    }
    settings = {
        "scrape.yaml": _scrape(plan),
        "datasources.yaml": _datasources(),
        "providers.yaml": _providers(),
    }
    maps = [
        {"name": name, "namespace": MONITORING, "files": [file]}
        for name, file in (
            ("prometheus", "scrape.yaml"),
            ("datasources", "datasources.yaml"),
            ("providers", "providers.yaml"),
            ("rules", "rules.yaml"),
            ("dashboards", "holdfast.json"),
        )
    ]
    return {
        **{path: yaml_of(*documents) for path, documents in files.items()},
        **{path: yaml_of(document) for path, document in settings.items()},
        **shown,
        **kustomization(resources=list(files), configMapGenerator=maps),
    }


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": MONITORING}


def _object(kind: str, version: str, name: str, app: str, **parts: Any) -> Document:
    metadata = {"name": name, "namespace": MONITORING, "labels": _labels(app)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _namespace() -> Document:
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": MONITORING, "labels": labels},
    }


def _prometheus(plan: RenderPlan) -> list[Document]:
    name = "prometheus"
    claim = _object(
        "PersistentVolumeClaim",
        "v1",
        name,
        name,
        spec={
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": _DISK}},
        },
    )
    arguments = [
        "--config.file=/etc/prometheus/scrape.yaml",
        "--storage.tsdb.path=/prometheus",
        f"--storage.tsdb.retention.time={_KEPT}",
    ]
    mounts = {
        "settings": "/etc/prometheus",
        "rules": "/etc/rules",
        "token": _TOKEN,
        "api": API_ACCESS,
        "data": "/prometheus",
    }
    volumes = [
        _config_map("settings", "prometheus"),
        _config_map("rules", "rules"),
        {"name": "token", "secret": {"secretName": "metrics", "defaultMode": 0o440}},
        api_access(),
        {"name": "data", "persistentVolumeClaim": {"claimName": name}},
    ]
    amounts = {"cpu": "500m", "memory": "2Gi"}
    pod = _pod(name, _PROMETHEUS, amounts, mounts, volumes, args=arguments)
    return [_account(name), *_rights(plan), claim, _deployment(name, pod), _service(name)]


def _rights(plan: RenderPlan) -> list[Document]:
    """Prometheus may find pods, in the namespace of the run and its own."""
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "prometheus"}
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": MONITORING}
    version = "rbac.authorization.k8s.io/v1"
    found = []
    for namespace in (MONITORING, plan.namespace):
        metadata = {
            "name": "prometheus",
            "namespace": namespace,
            "labels": _labels("prometheus"),
        }
        head = {"apiVersion": version, "metadata": metadata}
        found.append({**head, "kind": "Role", "rules": rules})
        found.append({**head, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]})
    return found


def _grafana() -> list[Document]:
    name = "grafana"
    settings = {
        "GF_SECURITY_ADMIN_PASSWORD__FILE": "/etc/grafana-secret/password",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_PATHS_PROVISIONING": "/etc/provisioning",
    }
    mounts = {
        "datasources": "/etc/provisioning/datasources",
        "providers": "/etc/provisioning/dashboards",
        "dashboards": "/etc/dashboards",
        "password": "/etc/grafana-secret",
        "data": "/var/lib/grafana",
        "logs": "/var/log/grafana",
    }
    volumes = [
        _config_map("datasources", "datasources"),
        _config_map("providers", "providers"),
        _config_map("dashboards", "dashboards"),
        {"name": "password", "secret": {"secretName": "grafana", "defaultMode": 0o440}},
        {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "logs", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    env = [{"name": key, "value": value} for key, value in settings.items()]
    amounts = {"cpu": "250m", "memory": "512Mi"}
    pod = _pod(name, _GRAFANA, amounts, mounts, volumes, env=env)
    return [_account(name), _deployment(name, pod), _service(name)]


def _dcgm() -> list[Document]:
    """The exporter without the rights of root: it has no profiling metrics."""
    name = "dcgm-exporter"
    env = [
        {"name": "DCGM_EXPORTER_LISTEN", "value": f":{_PORTS[name]}"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    ]
    amounts = {"cpu": "100m", "memory": "512Mi"}
    pod = _pod(name, _DCGM, amounts, {}, [], env=env)
    pod["spec"] |= {"nodeSelector": POOL, "tolerations": [toleration(GPU_TAINT)]}
    spec = {"selector": {"matchLabels": _labels(name)}, "template": pod}
    return [_account(name), _object("DaemonSet", "apps/v1", name, name, spec=spec)]


def _pod(
    name: str,
    image: str,
    amounts: dict[str, str],
    mounts: dict[str, str],
    volumes: Sequence[Document],
    **parts: Any,
) -> Document:
    """The template of a pod of one container, of an image that others have made.

    Args:
        name: Name of the container.
        image: Its image.
        amounts: Its requests, which are its limits.
        mounts: Paths of volumes, by their names; those of /etc are read-only.
        volumes: The volumes.
        parts: Its other fields.
    """
    mounted = [
        {"name": volume, "mountPath": path} | ({"readOnly": True} if path[:5] == "/etc/" else {})
        for volume, path in {**mounts, "tmp": "/tmp"}.items()  # noqa: S108
    ]
    container = {
        "name": name,
        "image": image,
        "env": [],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": OF_CONTAINER,
        "ports": [{"name": "metrics", "containerPort": _PORTS[name]}],
        "readinessProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 10},
        "volumeMounts": mounted,
        **parts,
    }
    user = _USERS[name]
    return {
        "metadata": {"labels": _labels(name)},
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 60,
            "securityContext": {
                **OF_POD,
                "runAsUser": user,
                "runAsGroup": user,
                "fsGroup": user,
            },
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}, *volumes],
        },
    }


def _config_map(volume: str, name: str) -> Document:
    return {"name": volume, "configMap": {"name": name}}


def _account(name: str) -> Document:
    return _object("ServiceAccount", "v1", name, name, automountServiceAccountToken=False)


def _deployment(name: str, pod: Document) -> Document:
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # of two, only one could have the volume
        "selector": {"matchLabels": _labels(name)},
        "template": pod,
    }
    return _object("Deployment", "apps/v1", name, name, spec=spec)


def _service(name: str) -> Document:
    ports = [{"name": "http", "port": _PORTS[name], "targetPort": "metrics"}]
    return _object("Service", "v1", name, name, spec={"selector": _labels(name), "ports": ports})


def _network(plan: RenderPlan) -> list[Document]:
    """Grafana is reached by `kubectl port-forward`, which needs no policy."""
    version = "networking.k8s.io/v1"

    def app(name: str) -> Document:
        return {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name}}}

    def ports(name: str) -> list[Document]:
        return [{"protocol": "TCP", "port": _PORTS[name]}]

    both = {"policyTypes": ["Ingress", "Egress"]}
    of_run = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": plan.namespace}}}
    specs = {
        "deny": {"podSelector": {}, **both},
        "prometheus": {
            **app("prometheus"),
            **both,
            "ingress": [{"from": [app("grafana")], "ports": ports("prometheus")}],
            "egress": [
                DNS,
                API,
                {"to": [app("dcgm-exporter")], "ports": ports("dcgm-exporter")},
                {"to": [of_run], "ports": [{"protocol": "TCP", "port": METRICS_PORT}]},
            ],
        },
        "grafana": {
            **app("grafana"),
            **both,
            "egress": [DNS, {"to": [app("prometheus")], "ports": ports("prometheus")}],
        },
        "dcgm-exporter": {
            **app("dcgm-exporter"),
            **both,
            "ingress": [{"from": [app("prometheus")], "ports": ports("dcgm-exporter")}],
        },
    }
    return [
        _object("NetworkPolicy", version, name, MONITORING, spec=spec)
        for name, spec in specs.items()
    ]


def _scrape(plan: RenderPlan) -> Document:
    """Targets of Prometheus: pods with a port called `metrics`, those of runs by a token."""
    keep = {
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": "metrics",
        "action": "keep",
    }
    names = [
        {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
        for source, target in (("pod_name", "pod"), ("namespace", "namespace"))
    ]

    def pods_of(job: str, namespace: str, **parts: Any) -> Document:
        found = {"role": "pod", "namespaces": {"names": [namespace]}}
        return {
            "job_name": job,
            "kubernetes_sd_configs": [found],
            "relabel_configs": [keep, *names],
            **parts,
        }

    shown = {"credentials_file": f"{_TOKEN}/token"}
    return {
        "global": {"scrape_interval": "15s"},
        "rule_files": ["/etc/rules/*.yaml"],
        "scrape_configs": [
            pods_of("gpus", MONITORING),
            pods_of("holdfast", plan.namespace, authorization=shown),
        ],
    }


def _datasources() -> Document:
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "url": f"http://prometheus:{_PORTS['prometheus']}",
        "access": "proxy",
        "isDefault": True,
    }
    return {"apiVersion": 1, "datasources": [source]}


def _providers() -> Document:
    provider = {"name": "holdfast", "type": "file", "options": {"path": "/etc/dashboards"}}
    return {"apiVersion": 1, "providers": [provider]}
