#!/bin/sh
# Fetch programs of Kafka's ecosystem with Maven, for examples/cdc and the tests that drive them:
#   scripts/ecosystem_jars.sh DIR [client|connect|debezium|flink|apicurio ...]
#   CORDWOOD_ECOSYSTEM_JARS=DIR pytest tests/integration/ecosystem
# Each program gets a directory of its own below DIR; one that is complete already is left alone.
# Maven decides where from (its settings.xml); nothing is kept in the repository.
set -eu
directory=${1:?usage: scripts/ecosystem_jars.sh DIR [client|connect|debezium|flink|apicurio ...]}
shift
[ $# -gt 0 ] || set -- client connect debezium flink apicurio
command -v mvn >/dev/null || { echo "mvn is missing: install Maven (Debian: apt install maven)" >&2; exit 1; }
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

kafka=4.3.1 flink=2.2.1
artifacts() {
    case $1 in
        client) echo org.apache.kafka:kafka-clients:4.4.0 org.slf4j:slf4j-simple:1.7.36 ;;
        connect) echo org.apache.kafka:connect-runtime:$kafka org.apache.kafka:connect-file:$kafka \
            org.apache.kafka:connect-mirror:$kafka org.apache.kafka:kafka-streams:$kafka org.slf4j:slf4j-simple:1.7.36 ;;
        debezium) echo io.debezium:debezium-connector-postgres:3.6.1.Final ;;
        flink) echo org.apache.flink:flink-streaming-java:$flink org.apache.flink:flink-clients:$flink \
            org.apache.flink:flink-connector-kafka:5.0.0-2.2 org.apache.flink:flink-connector-base:$flink \
            org.slf4j:slf4j-simple:1.7.36 ;;
        apicurio) echo io.apicurio:apicurio-registry-app:3.0.9 ;;
        *) echo "there is no program $1; there are: client connect debezium flink apicurio" >&2; exit 2 ;;
    esac
}

copy_with_dependencies() {  # the runtime classpath of the artifacts, as jars
    {
        echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        echo '<groupId>cordwood</groupId><artifactId>ecosystem</artifactId><version>1</version><dependencies>'
        for artifact in "$@"; do
            echo "$artifact" | sed 's|\(.*\):\(.*\):\(.*\)|<dependency><groupId>\1</groupId><artifactId>\2</artifactId><version>\3</version></dependency>|'
        done
        echo '</dependencies></project>'
    } >"$work/pom.xml"
    mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/jars"
}

copy_distribution() {  # a program that is published whole, as an archive
    mvn -q -B dependency:copy -Dartifact="$1:tar.gz:all" -DoutputDirectory="$work/archive"
    mkdir -p "$work/jars"
    tar -xzf "$work"/archive/*.tar.gz -C "$work/jars"
}

for program in "$@"; do
    wanted=$(artifacts "$program")
    [ "$(cat "$directory/$program/.artifacts" 2>/dev/null)" != "$wanted" ] || continue
    echo "fetching $wanted with Maven" >&2
    case $program in
        apicurio) copy_distribution "$wanted" ;;
        *) copy_with_dependencies $wanted ;;
    esac
    echo "$wanted" >"$work/jars/.artifacts"
    rm -rf "${directory:?}/$program"
    mv "$work/jars" "$directory/$program"
done
