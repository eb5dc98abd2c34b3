#!/bin/sh
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
