"""Rights in Kubernetes: agents nothing; the coordinator may fill one Secret.

The Secret is rendered empty, so that the coordinator needs no right to create any, and what is
applied again takes nothing from it.
"""

from __future__ import annotations

from holdfast.clusters.render.objects import AGENT, COORDINATOR, Document, manifest
from holdfast.clusters.render.plan import RenderPlan


def accounts(plan: RenderPlan) -> list[Document]:
    """The accounts of the pods, which have no rights of themselves."""
    return [_account(plan, component) for component in (COORDINATOR, AGENT)]


def access(plan: RenderPlan) -> list[Document]:
    """All accounts, rights and Secrets of a run whose coordinator makes tokens."""
    join = plan.named("join")
    return [
        *accounts(plan),
        manifest(plan, "Secret", "v1", join, type="Opaque"),
        manifest(
            plan,
            "Role",
            "rbac.authorization.k8s.io/v1",
            join,
            COORDINATOR,
            rules=[
                {
                    "apiGroups": [""],
                    "resources": ["secrets"],
                    "resourceNames": [join],
                    "verbs": ["patch"],
                }
            ],
        ),
        manifest(
            plan,
            "RoleBinding",
            "rbac.authorization.k8s.io/v1",
            join,
            COORDINATOR,
            roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": join},
            subjects=[
                {
                    "kind": "ServiceAccount",
                    "name": plan.named(COORDINATOR),
                    "namespace": plan.namespace,
                }
            ],
        ),
    ]


def _account(plan: RenderPlan, component: str) -> Document:
    return manifest(
        plan,
        "ServiceAccount",
        "v1",
        plan.named(component),
        component,
        automountServiceAccountToken=False,
    )
