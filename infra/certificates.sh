#!/bin/sh
# Make a certificate authority and one certificate for a Dask cluster with TLS:
#
#   sh infra/certificates.sh DIRECTORY [DAYS]
#
# NAMES="DNS:store.example.org,IP:192.0.2.7" in the environment makes the certificate one of servers with
# these names, too (of an object store, of a page); Dask does not look at names.
# Give ca.pem, cert.pem and key.pem to the scheduler and the workers
# (`dask scheduler --tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem`) and into the
# configuration (`compute: {scheduler: tls://host:8786, tls: {ca: ..., cert: ..., key: ...}}`).
# Whoever holds the key can run code on the cluster: protect it. The script deletes the authority's own
# key: to renew, run it again and distribute all three files again.
set -eu
if [ $# -lt 1 ]; then
  echo "error: no directory given; run sh $0 DIRECTORY [DAYS]" >&2
  exit 2
fi
command -v openssl >/dev/null || { echo "error: openssl is not installed" >&2; exit 2; }
umask 077
mkdir -p "$1"
cd "$1"
days="${2:-365}"
trap 'rm -f ca.key request.pem ca.srl extensions' EXIT
openssl req -x509 -newkey rsa:3072 -nodes -sha256 -days "$days" -subj "/CN=disagg authority" \
  -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:3072 -nodes -sha256 -subj "/CN=disagg cluster" \
  -keyout key.pem -out request.pem 2>/dev/null
printf '%s\n' "basicConstraints=CA:FALSE" "extendedKeyUsage=serverAuth,clientAuth" \
  ${NAMES:+"subjectAltName=$NAMES"} >extensions
openssl x509 -req -sha256 -days "$days" -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial \
  -extfile extensions -out cert.pem 2>/dev/null
echo "$1 holds ca.pem, cert.pem and key.pem, valid for $days days"
