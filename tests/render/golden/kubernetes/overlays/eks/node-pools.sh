#!/bin/sh
set -eu
: "${CLUSTER:?the name of the cluster}"
: "${NODE_ROLE_ARN:?the role of its nodes}"
: "${SUBNET:?one subnet, so that all nodes are in one zone}"
: "${INSTANCE_TYPE:?such as g6.4xlarge}"
aws eks create-nodegroup \
  "--cluster-name=$CLUSTER" \
  --nodegroup-name=holdfast-gpu \
  "--node-role=$NODE_ROLE_ARN" \
  "--subnets=$SUBNET" \
  "--instance-types=$INSTANCE_TYPE" \
  --ami-type=AL2023_x86_64_NVIDIA \
  --capacity-type=ON_DEMAND \
  --scaling-config=minSize=0,maxSize=4,desiredSize=0 \
  --labels=holdfast/pool=gpu \
  --taints \
  key=nvidia.com/gpu,value=present,effect=NO_SCHEDULE
aws eks create-nodegroup \
  "--cluster-name=$CLUSTER" \
  --nodegroup-name=holdfast-gpu-spot \
  "--node-role=$NODE_ROLE_ARN" \
  "--subnets=$SUBNET" \
  "--instance-types=$INSTANCE_TYPE" \
  --ami-type=AL2023_x86_64_NVIDIA \
  --capacity-type=SPOT \
  --scaling-config=minSize=0,maxSize=4,desiredSize=0 \
  --labels=holdfast/pool=gpu,holdfast/spot=true \
  --taints \
  key=nvidia.com/gpu,value=present,effect=NO_SCHEDULE \
  key=holdfast/spot,value=true,effect=NO_SCHEDULE
