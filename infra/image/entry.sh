#!/bin/sh
# Entry point of the image: check that HOME can be written to, then become the given program.
set -eu
if ! mkdir -p "$TMPDIR" "$MPLCONFIGDIR" "$NUMBA_CACHE_DIR" 2>/dev/null; then
  echo "error: $HOME cannot be written to by user $(id -u); mount a volume there that this user owns" >&2
  exit 2
fi
exec "$@"
