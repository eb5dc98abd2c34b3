#!/bin/sh
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
  "--accelerator=type=$GPU_TYPE,count=2,gpu-driver-version=default" \
  --enable-autoscaling \
  --num-nodes=0 \
  --total-min-nodes=0 \
  --total-max-nodes=4 \
  --node-labels=holdfast/pool=gpu \
  --node-taints=nvidia.com/gpu=present:NoSchedule
gcloud container node-pools create \
  holdfast-gpu-spot \
  "--cluster=$CLUSTER" \
  "--location=$LOCATION" \
  "--machine-type=$MACHINE_TYPE" \
  "--accelerator=type=$GPU_TYPE,count=2,gpu-driver-version=default" \
  --enable-autoscaling \
  --num-nodes=0 \
  --total-min-nodes=0 \
  --total-max-nodes=4 \
  --node-labels=holdfast/pool=gpu,holdfast/spot=true \
  --node-taints=nvidia.com/gpu=present:NoSchedule,holdfast/spot=true:NoSchedule \
  --spot
