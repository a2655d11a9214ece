#!/bin/sh
# Run one of many maps: the one whose number this task of an array job has.
#
#   DISAGG_MAPS="s3://maps/a/disagg.yaml s3://maps/b/disagg.yaml" disagg-map [OPTIONS OF disagg run]
#
# AWS Batch, Google Batch, Kubernetes (indexed Jobs) and Slurm each have a name of their own for the number.
set -eu
number=${AWS_BATCH_JOB_ARRAY_INDEX:-${BATCH_TASK_INDEX:-${JOB_COMPLETION_INDEX:-${SLURM_ARRAY_TASK_ID:-0}}}}
options=$#
# shellcheck disable=SC2086  # one word an address
set -- "$@" ${DISAGG_MAPS:-}
if [ $(($# - options)) -le "$number" ]; then
  echo "error: DISAGG_MAPS: $(($# - options)) maps, and this is task $number (from 0); give as many as tasks" >&2
  exit 2
fi
count=0
for word in "$@"; do
  if [ "$count" -eq $((options + number)) ]; then map=$word; fi
  count=$((count + 1))
done
count=0
for word in "$@"; do
  shift
  if [ "$count" -lt "$options" ]; then set -- "$@" "$word"; fi
  count=$((count + 1))
done
exec disagg run "$map" "$@"
