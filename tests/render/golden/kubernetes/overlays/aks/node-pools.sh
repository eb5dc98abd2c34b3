#!/bin/sh
# Node pools of Azure Kubernetes Service, where their names have at most 12 letters:
# hfgpu and hfgpuspot.
#
#   holdfast-gpu        on demand, for overlays/gpu          0 to one node more than there are agents
#   holdfast-gpu-spot   spot, for the overlay of the cloud   the same
#
# With a lower size of 0, nodes exist only while a run needs them. A node more lets a new agent start
# while a node that the cloud takes away is still there. The coordinator needs no GPU: it runs on the
# nodes that the cluster has anyway.
set -eu
: "${RESOURCE_GROUP:?of the cluster}"
: "${CLUSTER:?the name of the cluster}"
: "${VM_SIZE:?such as Standard_NC4as_T4_v3}"
az aks nodepool add \
  "--resource-group=$RESOURCE_GROUP" \
  "--cluster-name=$CLUSTER" \
  --name=hfgpu \
  --mode=User \
  "--node-vm-size=$VM_SIZE" \
  --enable-cluster-autoscaler \
  --node-count=0 \
  --min-count=0 \
  --max-count=4 \
  --labels \
  holdfast/pool=gpu \
  --node-taints=nvidia.com/gpu=present:NoSchedule
az aks nodepool add \
  "--resource-group=$RESOURCE_GROUP" \
  "--cluster-name=$CLUSTER" \
  --name=hfgpuspot \
  --mode=User \
  "--node-vm-size=$VM_SIZE" \
  --enable-cluster-autoscaler \
  --node-count=0 \
  --min-count=0 \
  --max-count=4 \
  --labels \
  holdfast/pool=gpu \
  holdfast/spot=true \
  --node-taints=nvidia.com/gpu=present:NoSchedule,holdfast/spot=true:NoSchedule \
  --priority=Spot \
  --eviction-policy=Delete \
  --spot-max-price=-1
