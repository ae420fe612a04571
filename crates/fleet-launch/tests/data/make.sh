#!/bin/sh
# Makes the certificates of the tests of TLS: an authority, what it signs, and another authority.
set -e
cd "$(dirname "$0")"
key() { openssl genpkey -algorithm ed25519 -out "$1-key.pem"; }
authority() {
    key "$1"
    openssl req -x509 -new -key "$1-key.pem" -days 36500 -subj "/CN=$1" \
        -addext basicConstraints=critical,CA:TRUE -out "$1-cert.pem"
}
signed() {
    key "$1"
    openssl req -new -key "$1-key.pem" -subj "/CN=$1" |
        openssl x509 -req -days 36500 -CA authority-cert.pem -CAkey authority-key.pem \
            -CAcreateserial -extfile names -out "$1-cert.pem"
}
printf "subjectAltName=IP:127.0.0.1\n" > names
authority authority
authority other
signed server
signed client
rm -f names authority-key.pem other-key.pem authority-cert.srl
