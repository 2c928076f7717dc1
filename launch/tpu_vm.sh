#!/usr/bin/env bash
# bert_jax on a Cloud TPU, a single host or a slice of many: see --help and docs/pods.md.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
copied=(README.md setup.py pyproject.toml bert_jax input_pipeline launch)
worker_script=bert_jax/launch/tpu_worker.sh

usage() {
  cat << 'USAGE'
usage: launch/tpu_vm.sh VERB --name=NAME --zone=ZONE [options] [-- FLAGS OF bert_jax]

verbs:
  create   asks for the TPU, as a queued resource, and waits until it is there
  install  copies this clone to all workers and installs it there
  start    python -m bert_jax.main FLAGS on all workers, in the background
  logs     follows the log of worker 0; Ctrl-C ends the following, not the run
  status   the state of the TPU, and of the run on each worker
  stop     SIGTERM: the run saves and ends; start goes on with it
  watch    create, install and start, now and after each preemption, until the run ends
  delete   gives the TPU back

options:
  --name=NAME          of the queued resource and its TPU VM
  --zone=ZONE          such as europe-west4-b
  --project=PROJECT    default: that of gcloud's configuration
  --type=TYPE          create, watch: accelerator type, such as v6e-8, v5litepod-16, v4-32
  --version=VERSION    create, watch: software of the TPU VM; default: the one for JAX on this type
  --spot               create, watch: cheaper, and may be preempted
  --create_flag=FLAG   create, watch: a further flag of `gcloud compute tpus queued-resources create`, such as
                       --create_flag=--network=NAME; may be repeated
  --internal_ip        reach the workers by their internal addresses
  --poll_seconds=N     how often create and watch look; default 30
  --dry_run            print the commands and run none; what they would find out is assumed

exit codes: 0 done; 1 gcloud failed; 2 a mistake in an option, named in one line; watch: that of the run
USAGE
}

fail() {
  echo "error: $1" >&2
  exit "${2:-2}"
}

said=''
say() {
  [ "$1" = "$said" ] || echo "$name: $1" >&2
  said=$1
}

# Words as a shell reads them, only those quoted that need it.
quoted() {
  local word separator=
  for word in "$@"; do
    printf '%s' "$separator"
    case $word in
      '' | *[!A-Za-z0-9_./:=,@%+-]*)
        # The x keeps newlines at the end of the word.
        word=$(printf '%sx' "$word" | sed "s/'/'\\\\''/g")
        printf "'%s'" "${word%x}"
        ;;
      *) printf '%s' "$word" ;;
    esac
    separator=' '
  done
}

run() {
  if [ -n "$dry_run" ]; then
    quoted "$@" >&3
    echo >&3
  else
    "$@"
  fi
}

pause() {
  [ -n "$dry_run" ] || sleep "$poll_seconds"
}

tpus() {
  local group=$1 verb=$2
  shift 2
  run gcloud compute tpus "$group" "$verb" "$@" "${place[@]}"
}

# After a preemption, watch outlives what fails for a while; what fails at first is a mistake.
attempt() {
  if "$@"; then return; fi
  if [ "$verb" != watch ] || [ -z "$was_active" ]; then exit 1; fi
  say "gcloud failed; trying again"
}

# Prints the value of a field of what describe tells, or ABSENT.
described() {
  local group=$1 field=$2 errors answer code=0
  if [ -n "$dry_run" ]; then
    tpus "$group" describe "$name" "--format=value($field)"
    return
  fi
  errors=$(mktemp)
  answer=$(tpus "$group" describe "$name" "--format=value($field)" 2> "$errors") || code=$?
  if [ "$code" -eq 0 ]; then
    echo "${answer:-UNKNOWN}"
  elif grep -q NOT_FOUND "$errors"; then
    echo ABSENT
    code=0
  else
    echo "error: gcloud: $(grep . "$errors" | tail -n 1)" >&2
  fi
  rm -f "$errors"
  return "$code"
}

# Sets `state` to that of the queued resource. In a dry run `assumed` stands for it, which commands change.
look() {
  state=UNREACHABLE
  attempt read_state
}

read_state() {
  state=$(described queued-resources state.state) || return
  [ -z "$dry_run" ] || state=$assumed
}

on_workers() {
  local workers=$1 command=$2
  tpus tpu-vm ssh "$name" "--worker=$workers" ${internal_ip:+"$internal_ip"} "--command=$command"
}

remove() {
  # --force deletes the TPU VM too, and --quiet asks nothing.
  tpus queued-resources delete "$name" --force --quiet || return
  assumed=ABSENT
}

request() {
  tpus queued-resources create "$name" "--node-id=$name" "--accelerator-type=$type" "--runtime-version=$version" \
    ${spot:+"$spot"} ${create_flags[@]+"${create_flags[@]}"} || return
  assumed=ACTIVE
}

create() {
  local requested='' vm
  while :; do
    look
    [ "$state$was_active" = ACTIVEyes ] || say "$state"
    case $state in
      ACTIVE)
        was_active=yes
        # The queued resource of a preempted VM may stay active for a while.
        vm=UNREACHABLE
        attempt read_vm
        case $vm in
          PREEMPTED | TERMINATED | ABSENT)
            say "its VM is $vm: asking for a new one"
            attempt remove
            ;;
          *) return ;;
        esac
        ;;
      ABSENT)
        attempt request
        requested=yes
        [ -z "$dry_run" ] || continue
        ;;
      SUSPENDED | FAILED)
        if [ "$verb" = create ] && [ -n "$requested" ]; then
          fail "$name is $state: gcloud compute tpus queued-resources describe $(quoted "$name" "${place[@]}") tells why" 1
        fi
        say "asking for a new one"
        attempt remove
        ;;
    esac
    pause
  done
}

read_vm() {
  vm=$(described tpu-vm state)
}

install() {
  local folder=/tmp code=0 archive
  [ -n "$dry_run" ] || folder=$(mktemp -d) || return
  archive=$folder/bert_jax.tar.gz
  run tar -czf "$archive" -C "$root" --exclude=__pycache__ "${copied[@]}" &&
    tpus tpu-vm scp "$archive" "$name:bert_jax.tar.gz" --worker=all ${internal_ip:+"$internal_ip"} &&
    on_workers all "rm -rf bert_jax_new && mkdir bert_jax_new && tar -xzf bert_jax.tar.gz -C bert_jax_new \
&& bash bert_jax_new/launch/tpu_worker.sh install" || code=$?
  [ -n "$dry_run" ] || rm -rf "$folder"
  return "$code"
}

start() {
  on_workers all "bash $worker_script start -- $(quoted "${flags[@]}")"
}

logs() {
  on_workers 0 "bash $worker_script logs"
}

status() {
  look
  [ -n "$dry_run" ] || echo "$name: $state"
  [ "$state" != ACTIVE ] || on_workers all "bash $worker_script status"
}

stop() {
  on_workers all "bash $worker_script stop"
}

delete() {
  look
  if [ "$state" = ABSENT ]; then
    say "there is none"
  else
    remove
    say "deleted"
  fi
}

# Lines "I of N: STATE" of all workers that can be reached.
worker_states() {
  local answer
  answer=$(on_workers all "bash $worker_script status || echo bert_jax worker 0 of 1: not_installed" 2> /dev/null || true)
  if [ -n "$dry_run" ]; then
    answer=$assumed_run
  fi
  printf '%s\n' "$answer" | sed -n 's/^.*bert_jax worker \([0-9]* of [0-9]*: .*\)$/\1/p'
}

watch() {
  local lines count answering code begun=''
  while :; do
    create
    lines=$(worker_states | sort -u)
    answering=$(printf '%s' "$lines" | grep -c . || true)
    count=$(printf '%s\n' "$lines" | sed -n '1s/.* of \([0-9]*\):.*/\1/p')
    if [ "$answering" -eq 0 ]; then
      say "no worker answers" # as yet, or any more
    elif has running; then
      begun=yes
      say "running"
    elif has not_installed; then
      begun=yes
      say "installing and starting"
      go install start
    elif [ "$answering" -lt "$count" ]; then
      say "$answering of $count workers answer"
    elif [ -z "$begun" ] || has interrupted || has not_started; then
      # How an earlier run ended says nothing about this one.
      say "starting"
      begun=yes
      go start
    elif has stopped; then
      say "the run was stopped, with everything saved"
      exit 75
    elif has 'failed [0-9]*'; then
      code=$(printf '%s\n' "$lines" | sed -n 's/.*: failed //p' | head -n 1)
      fail "the run failed with exit code $code: see logs" "$code"
    else
      say "the run is finished"
      return
    fi
    pause
  done
}

has() {
  printf '%s\n' "$lines" | grep -q ": $1\$"
}

# A VM that has just begun, or is about to go, cannot be reached for a while; what fails often is something else.
failures=0
go() {
  local step
  for step in "$@"; do
    if "$step"; then
      assumed_run='bert_jax worker 0 of 1: finished'
    else
      [ "$((++failures))" -lt 10 ] || fail "$step failed $failures times in a row" 1
      say "$step failed; trying again"
      return
    fi
  done
  failures=0
}

default_version() {
  case $type in
    v6e-*) echo v2-alpha-tpuv6e ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    *) fail "--type=$type is none that is known here (v6e-8, v5p-8, v5litepod-8 for v5e, v4-8, ...): give its --version too" ;;
  esac
}

verb=${1-}
case $verb in
  create | install | start | logs | status | stop | watch | delete) shift ;;
  -h | --help)
    usage
    exit
    ;;
  *) fail "${verb:-nothing} is no verb: the first word is one of create, install, start, logs, status, stop, watch, delete" ;;
esac

name='' zone='' project='' type='' version='' spot='' internal_ip='' dry_run='' poll_seconds=30
create_flags=() flags=() has_flags=''
while [ $# -gt 0 ]; do
  case $1 in
    --name=?*) name=${1#*=} ;;
    --zone=?*) zone=${1#*=} ;;
    --project=?*) project=${1#*=} ;;
    --type=?*) type=${1#*=} ;;
    --version=?*) version=${1#*=} ;;
    --create_flag=?*) create_flags+=("${1#*=}") ;;
    --poll_seconds=?*) poll_seconds=${1#*=} ;;
    --spot) spot=$1 ;;
    --internal_ip) internal_ip=--internal-ip ;;
    --dry_run) dry_run=yes ;;
    -h | --help)
      usage
      exit
      ;;
    --)
      shift
      has_flags=yes
      flags=("$@")
      break
      ;;
    --name | --zone | --project | --type | --version | --create_flag | --poll_seconds | \
      --name= | --zone= | --project= | --type= | --version= | --create_flag= | --poll_seconds=)
      fail "${1%=} needs a value: ${1%=}=VALUE"
      ;;
    *) fail "$1 is no option of tpu_vm.sh (see --help); flags of bert_jax come after --" ;;
  esac
  shift
done

[ -n "$name" ] || fail "--name is missing"
[ -n "$zone" ] || fail "--zone is missing, such as --zone=europe-west4-b"
[[ $name =~ ^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$ ]] ||
  fail "--name=$name must be lower-case letters, digits and hyphens, and begin with a letter"
[[ $poll_seconds =~ ^[0-9]+$ ]] || fail "--poll_seconds=$poll_seconds must be a whole number"
case $verb in
  create | watch)
    [ -n "$type" ] || fail "--type is missing, such as --type=v6e-8"
    [ -n "$version" ] || version=$(default_version)
    ;;
  *)
    [ -z "$type$version$spot${create_flags[*]-}" ] || fail "--type, --version, --spot and --create_flag are for create and watch"
    ;;
esac
case $verb in
  start | watch) [ ${#flags[@]} -gt 0 ] || fail "the flags of bert_jax are missing: $verb ... -- --mode=pretrain ..." ;;
  *) [ -z "$has_flags" ] || fail "$verb takes no flags of bert_jax: -- is for start and watch" ;;
esac
if [ "$verb" = watch ]; then
  case " ${flags[*]} " in
    *' --output_dir=gs://'* | *' --output_dir gs://'*) ;;
    *) fail "watch needs --output_dir=gs://BUCKET/FOLDER here, not in a file of flags: the disks of a TPU are gone when it is preempted" ;;
  esac
fi
option=''
for word in ${flags[@]+"${flags[@]}"}; do
  flag=${option:+$option=}$word option=''
  case $flag in
    --input_file | --output_dir) option=$flag ;; # its value is the next word
    --input_file=gs://* | --input_file=tfds:* | --input_file=builtin | --output_dir=gs://*) ;;
    --input_file=* | --output_dir=*)
      say "warning: $flag is a place on the disk of each worker, to which nothing but this clone is copied"
      ;;
  esac
done
[ -n "$dry_run" ] || command -v gcloud > /dev/null || fail "gcloud is not installed: https://cloud.google.com/sdk/docs/install"

place=("--zone=$zone" ${project:+"--project=$project"})
# What a dry run takes for the state of the queued resource.
case $verb in
  create | watch) assumed=ABSENT ;;
  *) assumed=ACTIVE ;;
esac
was_active='' assumed_run='bert_jax worker 0 of 1: not_installed'
exec 3>&1
"$verb"
