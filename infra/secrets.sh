#!/bin/sh
# Make the secrets of one machine: logins, keys of the object store, certificates for Dask.
#
#   sh infra/secrets.sh DIRECTORY [USER]     # USER: who reads them; 65534, the image's user, by default
#
# Each secret is a file that its reader alone may read. Existing ones are kept. To renew one, delete its
# file, run the script again, and restart the services. infra/compose.yaml and infra/systemd read them.
set -eu
if [ $# -lt 1 ]; then
  echo "error: no directory given; run sh $0 DIRECTORY [USER]" >&2
  exit 2
fi
command -v openssl >/dev/null || { echo "error: openssl is not installed" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
umask 077
mkdir -p "$1"
cd "$1"
user=${2:-65534}
new() { [ -s "$1" ] || openssl rand -hex 24 >"$1"; }
new postgres-password
new s3-user
new s3-password
if ! [ -s prefect-auth ]; then echo "disagg:$(openssl rand -hex 24)" >prefect-auth; fi
echo "postgresql+asyncpg://prefect:$(cat postgres-password)@${DATABASE_HOST:-postgres}:5432/prefect" >database-url
[ -s tls/key.pem ] || sh "$here/certificates.sh" tls >/dev/null
if [ "$(id -u)" = 0 ]; then
  chown -R "$user" .
  chmod 711 . tls
fi
find . -type f -exec chmod 400 {} +
echo "$1 holds the secrets, readable by $user alone"
