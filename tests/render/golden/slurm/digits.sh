#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=4096M
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
#SBATCH --output=digits-%j.log

run="$PWD/runs/digits-$SLURM_JOB_ID"  # the same after a requeue
if [ -e "$run/job.yaml" ]; then set -- --resume; fi
holdfast train digits workers=6 resources.memory=2GiB resources.cpus=2 hosts=3 --on slurm --run "$run" "$@" &
holdfast=$! stopped='' interrupted=yes
trap 'stopped=yes interrupted=yes; kill -INT "$holdfast"' INT
while [ -n "$interrupted" ]; do  # a signal ends wait, but not the run
  interrupted=''
  wait "$holdfast"
  status=$?
done
if [ "$status" -eq 130 ] && [ -z "$stopped" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
