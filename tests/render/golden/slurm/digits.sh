#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=4096M
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=digits-%j.log

set -u
run="$PWD/runs/digits-$SLURM_JOB_ID"  # the same after a requeue
port=$((20000 + SLURM_JOB_ID % 10000 * 2))
resume=()
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -e "$run/job.yaml" ]; then resume=(--resume); fi
rm -rf "$run/secrets"  # of an earlier start

stopping='' interrupted=''
stop() { interrupted=yes; scancel --signal=TERM "$SLURM_JOB_ID.0"; }  # the coordinator's step
trap 'stopping=for-now; stop' TERM USR1
trap 'stopping=for-good; stop' INT

srun --relative=0 --nodes=1 --ntasks=1 --cpus-per-task=4 --no-kill --kill-on-bad-exit=0 --wait=0 \
  holdfast coordinator digits workers=6 resources.memory=2GiB resources.cpus=2 --hosts 3 --run "$run" --port "$port" "${resume[@]}" &
coordinator=$!
for _ in {1..600}; do
  if [ -e "$run/secrets/join.token" ] || ! kill -0 "$coordinator" 2>/dev/null; then break; fi
  sleep 0.2
done

if [ -e "$run/secrets/join.token" ]; then
  join=$(cat "$run/secrets/address") run="$run" \
    srun --relative=1 --nodes=2 --ntasks=2 --cpus-per-task=4 --no-kill --kill-on-bad-exit=0 --wait=0 --input=all \
    bash -c 'exec holdfast agent --join "$join" --token-file /dev/stdin \
      --run "$run-agent-$SLURM_PROCID"' <"$run/secrets/join.token" &
fi
agents=$!

interrupted=yes
while [ -n "$interrupted" ]; do  # a signal ends wait, but not the coordinator
  interrupted=''
  wait "$coordinator"
  status=$?
done
if [ "$status" -eq 130 ] && [ "$stopping" != for-good ]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit
fi
for _ in {1..60}; do
  kill -0 "$agents" 2>/dev/null || break  # they find out that the run is over
  sleep 0.5
done
exit "$status"
