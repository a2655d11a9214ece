#!/bin/sh
# Entry point of the image and of the units in infra/systemd: read secrets from files, check that HOME
# can be written to, then become the given program.
#
# A secret NAME may be given as NAME_FILE, the path of a file that holds it: a variable of a container or
# a unit is shown to everybody who may look at it.
set -eu
for name in PREFECT_API_AUTH_STRING PREFECT_SERVER_API_AUTH_STRING \
  PREFECT_API_DATABASE_CONNECTION_URL AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; do
  eval "file=\${${name}_FILE:-}"
  [ -n "$file" ] || continue
  # shellcheck disable=SC2034  # used by eval
  if ! value=$(cat "$file"); then
    echo "error: ${name}_FILE: $file cannot be read by user $(id -u); give it to this user" >&2
    exit 2
  fi
  eval "$name=\$value"
  export "${name?}"
done
# Caches and temporary files are nobody else's, whatever the umask of what the program publishes.
if ! (umask 077 && mkdir -p "${TMPDIR:-$HOME}" "${MPLCONFIGDIR:-$HOME}" "${NUMBA_CACHE_DIR:-$HOME}") 2>/dev/null ||
  ! [ -w "$HOME" ]; then
  echo "error: $HOME cannot be written to by user $(id -u); mount a volume there that this user owns" >&2
  exit 2
fi
exec "$@"
