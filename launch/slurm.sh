#!/usr/bin/env bash
# A Slurm job that runs bert_jax until it is done: sbatch [options of sbatch] launch/slurm.sh -- FLAGS OF bert_jax
#
# One process on each node drives all its devices. Two minutes before the time limit Slurm sends SIGTERM to the
# processes; they save and end with exit code 75, and the job goes back into the queue to go on from there. Options of
# sbatch, such as --nodes=2 --gpus-per-node=8 --time=4:00:00, take precedence over these:
#
#SBATCH --job-name=bert_jax
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
set -euo pipefail

fail() {
  echo "error: $1" >&2
  exit 2
}

if [ "${1-}" = --help ] || [ "${1-}" = -h ]; then
  sed -n '2,/^#SBATCH/ { /^#SBATCH/d; s/^#$//; s/^# //; p }' "$0"
  exit 0
fi
[ -n "${SLURM_JOB_ID-}" ] || fail "this is a job of Slurm: sbatch launch/slurm.sh -- --mode=pretrain ..."
[ "${1-}" != -- ] || shift
[ $# -gt 0 ] || fail "the flags of bert_jax are missing: sbatch launch/slurm.sh -- --mode=pretrain ..."

# A preemption may send SIGTERM to this shell too, which has to wait for the processes.
trap : TERM

# The processes end each other where they must; Slurm would not let them save. A task is not bound to a single core.
code=0
srun --kill-on-bad-exit=0 --cpu-bind=none ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
  python -m bert_jax.main "$@" || code=$?

# Of a job that was cancelled, or that Slurm has put back into the queue itself, the state is another one.
if [ "$code" -eq 75 ]; then
  state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) ||
    echo "squeue does not tell the state of the job: submit it again to go on" >&2
  if [ "$state" = RUNNING ]; then
    echo "back into the queue, to go on from there" >&2
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$code"
