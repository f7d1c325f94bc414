#!/bin/sh
# Start a scheduler, a worker or a job with the settings that all of them share:
#     THREADS=8 CERTIFICATES=/shared/certificates cluster/start.sh [--restart] dask worker ...
# With --restart the command is started again whenever it ends, until this script gets SIGTERM or
# SIGINT. The wait before a start doubles from 1 second to 64 seconds, and is 1 second again after a
# command that ran for 5 minutes.
set -eu
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR
. "$here/worker-environment.sh"
# shellcheck source-path=SCRIPTDIR
. "$here/tls-environment.sh"
[ "${1:?give a command}" = --restart ] || exec "$@"
shift
: "${1:?give a command after --restart}"

stopped=
child=
stop() {
    stopped=yes
    kill -TERM "$child" 2>/dev/null || true
}
# A signal ends the wait, not the child, and may come before the child is known.
wait_for_child() {
    [ -z "$stopped" ] || stop
    status=0
    wait "$child" || status=$?
    while [ "$status" -gt 128 ] && kill -0 "$child" 2>/dev/null; do
        status=0
        wait "$child" || status=$?
    done
}
trap stop TERM INT
wait_s=1
while [ -z "$stopped" ]; do
    begun=$(date +%s)
    "$@" &
    child=$!
    wait_for_child
    [ -z "$stopped" ] || break
    [ $(($(date +%s) - begun)) -lt 300 ] || wait_s=1
    echo "start.sh: $1 ended with status $status and is started again in $wait_s s" >&2
    sleep "$wait_s" &
    child=$!
    wait_for_child
    wait_s=$((wait_s < 64 ? 2 * wait_s : 64))
done
