#!/bin/sh
# Node pools of Google Kubernetes Engine.
#
#   holdfast-gpu        on demand, for overlays/gpu          0 to one node more than there are agents
#   holdfast-gpu-spot   spot, for the overlay of the cloud   the same
#
# With a lower size of 0, nodes exist only while a run needs them. A node more lets a new agent start
# while a node that the cloud takes away is still there. The coordinator needs no GPU: it runs on the
# nodes that the cluster has anyway.
set -eu
: "${CLUSTER:?the name of the cluster}"
: "${LOCATION:?its region or zone}"
: "${MACHINE_TYPE:?such as g2-standard-12}"
: "${GPU_TYPE:?such as nvidia-l4}"
gcloud container node-pools create \
  holdfast-gpu \
  "--cluster=$CLUSTER" \
  "--location=$LOCATION" \
  "--machine-type=$MACHINE_TYPE" \
  "--accelerator=type=$GPU_TYPE,count=%{gpus},gpu-driver-version=default" \
  --enable-autoscaling \
  --num-nodes=0 \
  --total-min-nodes=0 \
  --total-max-nodes=%{nodes} \
  --node-labels=holdfast/pool=gpu \
  --node-taints=nvidia.com/gpu=present:NoSchedule
gcloud container node-pools create \
  holdfast-gpu-spot \
  "--cluster=$CLUSTER" \
  "--location=$LOCATION" \
  "--machine-type=$MACHINE_TYPE" \
  "--accelerator=type=$GPU_TYPE,count=%{gpus},gpu-driver-version=default" \
  --enable-autoscaling \
  --num-nodes=0 \
  --total-min-nodes=0 \
  --total-max-nodes=%{nodes} \
  --node-labels=holdfast/pool=gpu,holdfast/spot=true \
  --node-taints=nvidia.com/gpu=present:NoSchedule,holdfast/spot=true:NoSchedule \
  --spot
