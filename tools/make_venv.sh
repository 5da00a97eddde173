#!/bin/sh
# Makes a virtual environment: make_venv.sh PYTHON DIRECTORY
set -eu

python=$1
directory=$2

[ -x "$directory/bin/python" ] && exit 0
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "Python 3.10 or newer is needed; set PYTHON=/path/to/python3" >&2
    exit 1
}
# Debian keeps part of venv in a separate package.
if ! "$python" -c 'import ensurepip' 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq </dev/null
    apt-get install -y -qq --no-install-recommends python3-venv </dev/null
fi
"$python" -m venv "$directory"
