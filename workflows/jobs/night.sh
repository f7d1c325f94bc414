#!/bin/sh
# Copies run and model of the local `directory` of night.toml, here OUTPUT, to before/TIME, keeps the
# last seven copies, and runs the night. If it fails, prints the end of night.log, which cron mails.
#     night.sh [OUTPUT]
set -e
output=${1:-output}
if [ ! -d "$output" ] && [ -d before ]; then
    echo "There is no directory $output: give that of night.toml as an argument." >&2
    exit 2
fi
rm -rf before/.unfinished
mkdir -p before/.unfinished
for group in "$output/run.zarr" "$output/model.zarr"; do
    [ ! -e "$group" ] || cp -r "$group" before/.unfinished
done
mv before/.unfinished "before/$(date -u +%F-%H%M%S)"
ls -dr before/* | tail -n +8 | xargs -r rm -r
PATH="$PWD/.venv/bin:$PATH"
python workflows/jobs/night.py night.toml >> night.log 2>&1 || {
    code=$?
    tail -2 night.log
    exit $code
}
