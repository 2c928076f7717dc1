#!/usr/bin/env bash
# What tpu_vm.sh lets each worker of a TPU do, in its home folder: install | start -- FLAGS | status | stop | logs.
#
#   ~/bert_jax       the code, as copied
#   ~/bert_jax_env   the Python environment, with `installed` once it is complete
#   ~/bert_jax_run   log, and of the last run the exit code; `lock` is held while a run lives
#
# status prints a line `bert_jax worker I of N: STATE`, where STATE is
#   not_installed, not_started, running,
#   finished       (exit code 0)
#   stopped        (by stop; saved)
#   interrupted    (by a signal to the run, or lost with the machine: start goes on)
#   failed CODE    (any other exit code: the log says why)
set -euo pipefail

code=$HOME/bert_jax
environment=$HOME/bert_jax_env
state=$HOME/bert_jax_run
interrupted=75

fail() {
  echo "tpu_worker.sh: $1" >&2
  exit 2
}

metadata() {
  curl --silent --fail --header 'Metadata-Flavor: Google' \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# How many workers there are; the metadata has an entry for each.
workers() {
  metadata worker-network-endpoints | tr ',' '\n' | grep -c .
}

is_running() {
  ! flock --shared --nonblock "$state/lock" true
}

install() {
  # From the folder that this script lies in, which is the new copy of the code.
  local new
  new=$(cd "$(dirname "$0")/.." && pwd)
  is_running && fail "a run is in progress: stop it before anything is installed"
  rm -rf "$code" "$environment/installed"
  mv "$new" "$code"
  # The system's Python may be older than bert_jax needs; uv brings one along.
  python3 -m pip install --user --quiet --upgrade uv
  python3 -m uv venv --quiet --allow-existing --python=3.12 "$environment"
  python3 -m uv pip install --quiet --python="$environment/bin/python" "${code}[tpu]"
  touch "$environment/installed"
  echo "bert_jax worker $(metadata agent-worker-number): installed"
}

start() {
  [ -e "$environment/installed" ] || fail "nothing is installed: run install first"
  if is_running; then
    echo "bert_jax worker $(metadata agent-worker-number): runs already"
    return
  fi
  rm -f "$state/exit_code" "$state/stopped" "$state/pid"
  touch "$state/started"
  # A session and a log of its own: the run goes on when the connection ends.
  setsid nohup bash "$code/launch/tpu_worker.sh" run "$@" >> "$state/log" 2>&1 < /dev/null &
  local tries=600
  until is_running || [ -e "$state/exit_code" ]; do
    [ "$((tries--))" -gt 0 ] || fail "the run did not begin: see the log"
    sleep 0.1
  done
  echo "bert_jax worker $(metadata agent-worker-number): started"
}

# Runs in the background and notes how it ended. Python inherits the lock, and so holds it if this shell is killed.
run() {
  exec 9> "$state/lock"
  flock --wait 5 9 || fail "a run is in progress"
  cd "$code"
  "$environment/bin/python" -m bert_jax.main "$@" &
  local python=$! signalled=yes ended result=0
  # A shutdown signals all processes; this one waits until Python has saved, and a signal ends `wait` early.
  trap 'signalled=yes' TERM
  echo "$python" > "$state/pid"
  while [ -n "$signalled" ]; do
    signalled=
    ended=0
    wait "$python" || ended=$?
    [ "$ended" -eq 127 ] || result=$ended # 127: it was waited for already
  done
  echo "$result" > "$state/exit_code"
}

status() {
  local what
  if is_running; then
    what=running
  elif [ ! -e "$environment/installed" ]; then
    what=not_installed
  elif [ ! -e "$state/started" ]; then
    what=not_started
  else
    # No exit code: the machine went down. 143: SIGTERM came before Python was ready to handle it.
    local ended=$interrupted
    [ ! -s "$state/exit_code" ] || ended=$(< "$state/exit_code")
    case $ended in
      0) what=finished ;;
      "$interrupted" | 143) if [ -e "$state/stopped" ]; then what=stopped; else what=interrupted; fi ;;
      *) what="failed $ended" ;;
    esac
  fi
  echo "bert_jax worker $(metadata agent-worker-number) of $(workers): $what"
}

stop() {
  if is_running; then
    touch "$state/stopped"
    until [ -s "$state/pid" ] || ! is_running; do sleep 0.1; done
    kill -TERM "$(< "$state/pid")" 2> /dev/null || true
    echo "bert_jax worker $(metadata agent-worker-number): asked to save and stop" >&2
    while is_running; do sleep 1; done
  fi
  status
}

logs() {
  touch "$state/log"
  exec tail -n 100 -F "$state/log"
}

mkdir -p "$state"
verb=${1-}
case $verb in
  install | start | run | status | stop | logs)
    shift
    [ "${1-}" != -- ] || shift
    "$verb" "$@"
    ;;
  *) fail "${verb:-nothing} is none of install, start, status, stop, logs" ;;
esac
