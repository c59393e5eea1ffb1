import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Flink: copies a topic to another one in upper case, exactly once, and ends at its end. */
public final class FlinkCopy {
    public static void main(String[] words) throws Exception {
        var settings = new Configuration();
        settings.setString("taskmanager.memory.managed.size", "32m");
        settings.setString("taskmanager.memory.network.min", "32m");
        settings.setString("taskmanager.memory.network.max", "32m");
        settings.setString("execution.checkpointing.interval", "500ms");
        settings.setString("execution.checkpointing.dir", words[1]);
        var environment = StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        var source = KafkaSource.<String>builder()
                .setBootstrapServers(words[0])
                .setTopics(words[2])
                .setGroupId("flink")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setBounded(OffsetsInitializer.latest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        var sink = KafkaSink.<String>builder()
                .setBootstrapServers(words[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix("flink-copy")
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.<String>builder()
                        .setTopic(words[3])
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                .build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), words[2])
                .map(text -> text.toUpperCase())
                .sinkTo(sink);
        environment.execute("copy");
    }

    private FlinkCopy() {}
}
