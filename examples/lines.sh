#!/bin/sh
# Lines from a shell: push with nc, ask what is durable, read one pipe away from awk.
#
#   examples/lines.sh 127.0.0.1:5673 127.0.0.1:5675
set -eu
ingress=${1:-127.0.0.1:5673}
control=${2:-127.0.0.1:5675}

# One line is one record: routing key, the producer's timestamp, its number, payload.
# HELLO makes the broker answer each record with an ACK once it is durable, and resends harmless.
{
    echo "HELLO thermometer"
    for n in 1 2 3; do echo "sensor.kitchen|$(date +%s)|$n|2$n.5"; done
} | nc -N "${ingress%:*}" "${ingress##*:}"

# The same number again, as after a lost connection: it is acknowledged and not stored twice.
printf 'HELLO thermometer\nsensor.kitchen|0|3|23.5\n' | nc -N "${ingress%:*}" "${ingress##*:}"

# How many records are durable?
echo GET_ACK | nc -N "${control%:*}" "${control##*:}"

# seq|broker_ts|routing_key|producer_ts|n|payload
printf 'SUBSCRIBE append FROM_START\n' | nc -N "${control%:*}" "${control##*:}" |
    awk -F'|' '$3 == "sensor.kitchen" { sum += $6; count++ } count == 3 { print "mean", sum / count; exit }'
