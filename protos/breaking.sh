#!/bin/sh
# Fails where the .proto breaks what main's clients rely on. usage: breaking.sh BUF
# Compares with the newest landed state: origin/main in a clone, else main's last commit.
set -eu
for base in origin/main main; do
    if git cat-file -e "$base:protos/bootstrap.proto" 2>/dev/null; then
        against=$(mktemp -d)
        trap 'rm -rf "$against"' EXIT
        git archive "$base" protos buf.yaml | tar -x -C "$against"
        "$1" breaking --against "$against"
        echo "buf breaking: no change to $base breaks a client"
        exit 0
    fi
done
echo "buf breaking: no earlier bootstrap.proto to compare with"
