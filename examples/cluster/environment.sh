#!/bin/sh
# Packs an environment for executors:  environment.sh LIBRARY ARCHIVE
# LIBRARY is what pip takes: the directory of this project, or a wheel of it.
set -eu
library=$1
archive=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/environment"
"$work/environment/bin/pip" install --quiet --requirement "$here/requirements.txt"
"$work/environment/bin/pip" install --quiet --no-deps "$library"
"$work/environment/bin/venv-pack" --quiet --force --prefix "$work/environment" --output "$archive"
