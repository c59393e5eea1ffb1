import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** Drives the Java client as its users do; prints facts, one per line, for the test to compare. */
public final class Client {
    static final String STRINGS = "org.apache.kafka.common.serialization.String";
    static String broker;

    public static void main(String[] words) throws Exception {
        broker = words[0];
        switch (words[1]) {
            case "produce" -> produce(words[2], Integer.parseInt(words[3]), words[4]);
            case "consume" -> consume(words[2], Integer.parseInt(words[3]), words[4], words[5]);
            case "transact" -> transact(words[2], words[3]);
            case "admin" -> admin(words[2]);
            default -> throw new IllegalArgumentException(words[1]);
        }
    }

    static Properties settings(String... pairs) {
        var all = new Properties();
        all.put("bootstrap.servers", broker);
        for (int at = 0; at < pairs.length; at += 2) {
            all.put(pairs[at], pairs[at + 1]);
        }
        return all;
    }

    static KafkaProducer<String, String> producer(String... pairs) {
        var all = settings(pairs);
        all.put("key.serializer", STRINGS + "Serializer");
        all.put("value.serializer", STRINGS + "Serializer");
        return new KafkaProducer<>(all);
    }

    static KafkaConsumer<String, String> consumer(String... pairs) {
        var all = settings(pairs);
        all.put("key.deserializer", STRINGS + "Deserializer");
        all.put("value.deserializer", STRINGS + "Deserializer");
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(all);
    }

    static void produce(String topic, int count, String codec) throws Exception {
        try (var producer = producer("acks", "all", "compression.type", codec, "linger.ms", "5")) {
            for (int number = 0; number < count; number++) {
                var record = new ProducerRecord<>(topic, "k" + number % 10, "v" + number);
                record.headers().add("number", Integer.toString(number).getBytes());
                producer.send(record);
            }
            producer.flush();
        }
    }

    static List<ConsumerRecord<String, String>> read(
            KafkaConsumer<String, String> consumer, int count) {
        var records = new ArrayList<ConsumerRecord<String, String>>();
        while (records.size() < count) {
            consumer.poll(Duration.ofSeconds(1)).forEach(records::add);
        }
        return records;
    }

    static void consume(String topic, int count, String group, String protocol) {
        try (var consumer = consumer("group.id", group, "group.protocol", protocol)) {
            consumer.subscribe(List.of(topic));
            for (var record : read(consumer, count)) {
                var header = new String(record.headers().lastHeader("number").value());
                System.out.println(record.key() + " " + record.value() + " " + header);
            }
            consumer.commitSync();
        }
    }

    /** Copies a topic in transactions of 10 records; every second one is aborted and repeated. */
    static void transact(String from, String to) throws Exception {
        try (var producer = producer("transactional.id", "copier");
                var consumer = consumer("group.id", "copiers", "isolation.level", "read_committed")) {
            producer.initTransactions();
            consumer.assign(List.of(new TopicPartition(from, 0)));
            consumer.seekToBeginning(consumer.assignment());
            var records = read(consumer, 100);
            for (int at = 0; at < 100; at += 10) {
                for (boolean commits : at % 20 == 0 ? new boolean[] {true} : new boolean[] {false, true}) {
                    producer.beginTransaction();
                    for (var record : records.subList(at, at + 10)) {
                        producer.send(new ProducerRecord<>(to, record.key(), record.value()));
                    }
                    var next = new OffsetAndMetadata(records.get(at + 9).offset() + 1);
                    producer.sendOffsetsToTransaction(
                            Map.of(new TopicPartition(from, 0), next), consumer.groupMetadata());
                    if (commits) {
                        producer.commitTransaction();
                    } else {
                        producer.flush();
                        producer.abortTransaction();
                    }
                }
            }
        }
        try (var committed = consumer("group.id", "copiers", "isolation.level", "read_committed")) {
            committed.assign(List.of(new TopicPartition(to, 0)));
            committed.seekToBeginning(committed.assignment());
            read(committed, 100).forEach(record -> System.out.println(record.value()));
            var at = committed.committed(Set.of(new TopicPartition(from, 0)));
            System.out.println("offset " + at.values().iterator().next().offset());
        }
    }

    static void admin(String topic) throws Exception {
        try (var admin = Admin.create(settings())) {
            var wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "600000"));
            admin.createTopics(List.of(wanted)).all().get();
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            System.out.println("partitions " + described.partitions().size());
            var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            Collection<AlterConfigOp> change = List.of(new AlterConfigOp(
                    new ConfigEntry("segment.bytes", "1048576"), AlterConfigOp.OpType.SET));
            admin.incrementalAlterConfigs(Map.of(resource, change)).all().get();
            var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            for (var name : List.of("retention.ms", "segment.bytes")) {
                System.out.println(name + " " + config.get(name).value());
            }
            try (var producer = producer()) {
                for (int number = 0; number < 5; number++) {
                    producer.send(new ProducerRecord<>(topic, 0, "k", "v" + number)).get();
                }
            }
            var first = new TopicPartition(topic, 0);
            admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(2))).all().get();
            var start = admin.listOffsets(Map.of(first, OffsetSpec.earliest())).all().get();
            var end = admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get();
            System.out.println("offsets " + start.get(first).offset() + " " + end.get(first).offset());
            admin.alterConsumerGroupOffsets("moved", Map.of(first, new OffsetAndMetadata(3))).all().get();
            var offsets = admin.listConsumerGroupOffsets("moved").partitionsToOffsetAndMetadata().get();
            System.out.println("group " + new TreeMap<>(Map.of("moved", offsets.get(first).offset())));
            admin.deleteConsumerGroups(List.of("moved")).all().get();
            System.out.println("groups " + admin.listGroups().all().get().stream()
                    .filter(group -> group.groupId().equals("moved")).count());
            System.out.println("nodes " + admin.describeCluster().nodes().get().size());
            admin.deleteTopics(List.of(topic)).all().get();
            System.out.println("topics " + admin.listTopics().names().get().contains(topic));
        }
    }

    private Client() {}
}
