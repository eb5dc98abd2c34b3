#!/bin/sh
# Node pools of Amazon Elastic Kubernetes Service.
#
#   holdfast-gpu        on demand, for overlays/gpu          0 to one node more than there are agents
#   holdfast-gpu-spot   spot, for the overlay of the cloud   the same
#
# With a lower size of 0, nodes exist only while a run needs them. A node more lets a new agent start
# while a node that the cloud takes away is still there. The coordinator needs no GPU: it runs on the
# nodes that the cluster has anyway.
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
