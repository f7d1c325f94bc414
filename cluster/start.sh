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
[ "$1" = --restart ] || exec "$@"
shift

stopped=
child=
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM INT
wait_s=1
while [ -z "$stopped" ]; do
    begun=$(date +%s)
    status=0
    "$@" &
    child=$!
    wait "$child" || status=$?
    if [ -n "$stopped" ]; then
        # The signal ended the first wait.
        wait "$child" || true
        break
    fi
    [ $(($(date +%s) - begun)) -lt 300 ] || wait_s=1
    echo "start.sh: $1 ended with status $status and is started again in $wait_s s" >&2
    sleep "$wait_s" &
    child=$!
    wait "$child" || true
    wait_s=$((wait_s < 64 ? 2 * wait_s : 64))
done
