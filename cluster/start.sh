#!/bin/sh
# Start a scheduler, a worker or a job with the settings that all of them share:
#     THREADS=8 CERTIFICATES=/shared/certificates cluster/start.sh dask worker ...
set -eu
here=$(dirname "$0")
# shellcheck source-path=SCRIPTDIR
. "$here/worker-environment.sh"
# shellcheck source-path=SCRIPTDIR
. "$here/tls-environment.sh"
exec "$@"
