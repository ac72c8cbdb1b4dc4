package orders;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Sends orders to Kafka, and reads them. */
public final class Orders {
    static final String TOPIC = "orders";

    private Orders() {}

    /** Send an order, and wait until the broker has acknowledged it. */
    public static void send(Producer<String, String> producer, String order)
            throws ExecutionException, InterruptedException {
        producer.send(new ProducerRecord<>(TOPIC, order)).get();
    }

    /** Return the first order of the topic. */
    public static String first(Consumer<String, String> consumer) {
        consumer.subscribe(List.of(TOPIC));
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
            if (!records.isEmpty()) return records.iterator().next().value();
        }
    }
}
