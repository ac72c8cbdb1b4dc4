import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer that answers lines: `poll MS` with the records as `value/deliveries`,
 * `ack TYPE VALUE...` and `commit` with the errors of partitions, `close`.
 */
public final class ShareClient {
    private ShareClient() {}

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("share.acknowledgement.mode", "explicit");
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        Map<String, ConsumerRecord<String, String>> held = new LinkedHashMap<>();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties)) {
            consumer.subscribe(List.of(arguments[2]));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println(answer(consumer, held, line.split(" ")));
            }
        }
    }

    private static String answer(
            KafkaShareConsumer<String, String> consumer,
            Map<String, ConsumerRecord<String, String>> held,
            String[] words) {
        switch (words[0]) {
            case "poll":
                StringBuilder found = new StringBuilder();
                long end = System.currentTimeMillis() + Long.parseLong(words[1]);
                while (found.length() == 0 && System.currentTimeMillis() < end) {
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                        held.put(record.value(), record);
                        found.append(record.value()).append('/');
                        found.append(record.deliveryCount().orElse((short) 0)).append(' ');
                    }
                }
                return found.toString().trim();
            case "ack":
                for (int at = 2; at < words.length; at++) {
                    consumer.acknowledge(held.remove(words[at]), AcknowledgeType.valueOf(words[1]));
                }
                return "";
            default:
                return consumer.commitSync().values().stream()
                        .map(error -> error.map(each -> each.getClass().getSimpleName()).orElse("ok"))
                        .collect(Collectors.joining(" "));
        }
    }
}
