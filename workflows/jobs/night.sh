#!/bin/sh
# Copies the run and the published model to before/TIME, keeps the last seven copies, and runs the
# night. If it fails, the end of night.log is printed, which cron mails.
set -e
copy=before/$(date -u +%F-%H%M%S)
mkdir -p "$copy"
for group in output/run.zarr output/model.zarr; do
    [ ! -e "$group" ] || cp -r "$group" "$copy"
done
ls -dr before/* | tail -n +8 | xargs -r rm -r
PATH="$PWD/.venv/bin:$PATH"
python workflows/jobs/night.py night.toml >> night.log 2>&1 || {
    code=$?
    tail -2 night.log
    exit $code
}
