# shellcheck shell=sh
# The environment in which dask's schedulers, workers and clients speak TLS and nothing else, with
# the files that certificates.py wrote. dask reads it when it is imported, so source it before:
#     CERTIFICATES=certificates . cluster/tls-environment.sh
: "${CERTIFICATES:?set CERTIFICATES to the directory that cluster/certificates.py wrote}"

export DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=tls
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True
export DASK_DISTRIBUTED__COMM__TLS__CA_FILE="$CERTIFICATES/ca.pem"
export DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__CERT="$CERTIFICATES/cert.pem"
export DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__KEY="$CERTIFICATES/key.pem"
export DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT="$CERTIFICATES/cert.pem"
export DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY="$CERTIFICATES/key.pem"
export DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT="$CERTIFICATES/cert.pem"
export DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY="$CERTIFICATES/key.pem"
# HTTP stays plain, so it serves health and metrics, and nothing of what is computed.
export DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES="['distributed.http.health', 'distributed.http.scheduler.prometheus']"
export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES="['distributed.http.health', 'distributed.http.worker.prometheus']"
