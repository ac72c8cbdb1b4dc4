import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts words with Kafka Streams and exactly_once_v2, until it is killed. Without a cache, each word
 * is written with each of its counts, so a word that is counted twice or not at all shows.
 *
 * <p>Arguments: address, application id, topic of lines, topic of counts, folder of the state, and
 * any number of settings as name=value; without a value, a setting is not set.
 */
public final class WordCount {
    private WordCount() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "500");
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        // A static member takes the place of its killed predecessor without waiting for its session.
        settings.put(StreamsConfig.consumerPrefix("group.instance.id"), "only");
        // What a predecessor without a common folder left open holds readers up for so long.
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "4000");
        for (int each = 5; each < arguments.length; each++) {
            String[] setting = arguments[each].split("=", 2);
            settings.remove(setting[0]);
            if (!setting[1].isEmpty()) {
                settings.put(setting[0], setting[1]);
            }
        }
        KafkaStreams streams = new KafkaStreams(topology(arguments[2], arguments[3]).build(), settings);
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
        ended.await();
    }

    private static StreamsBuilder topology(String lines, String counts) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(lines, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts")
                        .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(counts, Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }
}
