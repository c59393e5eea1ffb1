#!/bin/sh
# Fetch Kafka's own command-line tools and Spark's Kafka connector with Maven, for the tests that drive them:
#   scripts/kafka_jars.sh DIR
#   CORDWOOD_KAFKA_JARS=DIR pytest tests/integration/kafka/test_java_tools.py tests/integration/spark/test_kafka_connector.py
# Maven decides where from (its settings.xml); nothing is kept in the repository.
set -eu
directory=${1:?usage: scripts/kafka_jars.sh DIR [KAFKA_VERSION]}
version=${2:-3.9.1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>cordwood</groupId><artifactId>kafka-tools</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$version</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
POM
mkdir -p "$directory"
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$(cd "$directory" && pwd)"

# Spark's connector, jar by jar: its parent POM names a repository that not everybody reaches.
for artifact in \
    org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \
    org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 \
    org.apache.commons:commons-pool2:2.12.1
do
    mvn -q -B dependency:copy -Dartifact="$artifact" -DoutputDirectory="$(cd "$directory" && pwd)"
done
