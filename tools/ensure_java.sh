#!/bin/sh
# Finds Java 17 or newer, which Spark 4 needs; as root on Debian or Ubuntu installs it.
set -eu

java_command="${JAVA_HOME:+$JAVA_HOME/bin/}java"

java_version() {
    "$java_command" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

version=""
if command -v "$java_command" >/dev/null 2>&1; then
    version=$(java_version)
fi
if [ "${version:-0}" -ge 17 ]; then
    exit 0
fi

package=openjdk-17-jre-headless
if [ "$(id -u)" = 0 ] && [ -z "${JAVA_HOME:-}" ] && command -v apt-get >/dev/null 2>&1; then
    echo "Java 17 or newer not found: installing $package"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null
    # A release that has no Java 17 has a newer one.
    apt-get install -y -qq --no-install-recommends "$package" </dev/null ||
        apt-get install -y -qq --no-install-recommends default-jre-headless </dev/null
    exit 0
fi

if command -v apt-get >/dev/null 2>&1; then
    hint="sudo apt-get install $package"
elif command -v dnf >/dev/null 2>&1; then
    hint="sudo dnf install java-17-openjdk-headless"
elif command -v brew >/dev/null 2>&1; then
    hint="brew install openjdk@17"
else
    hint="see https://adoptium.net"
fi
echo "Spark needs Java 17 or newer, found: ${version:-none}${JAVA_HOME:+ in JAVA_HOME}. Install it: $hint" >&2
exit 1
