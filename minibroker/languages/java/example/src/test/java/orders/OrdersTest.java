package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import minibroker.Fault;
import minibroker.Journal;
import minibroker.Minibroker;
import minibroker.junit.WithMinibroker;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
@WithMinibroker("group.initial.rebalance.delay.ms=0")
class OrdersTest {
    @BeforeEach
    void createTopic(Minibroker kafka) {
        kafka.reset();
        kafka.createTopic("orders", 1, Map.of("retention.ms", "1000"));
    }

    private static KafkaProducer<String, String> producer(Minibroker kafka) {
        return new KafkaProducer<>(
                Map.of("bootstrap.servers", kafka.bootstrapServers()), new StringSerializer(), new StringSerializer());
    }

    @Test
    void orderArrives(Minibroker kafka) throws Exception {
        Map<String, Object> configs = Map.of(
                "bootstrap.servers", kafka.bootstrapServers(), "group.id", "billing", "auto.offset.reset", "earliest");
        try (var producer = producer(kafka);
                var consumer = new KafkaConsumer<>(configs, new StringDeserializer(), new StringDeserializer())) {
            Orders.send(producer, "7");
            assertEquals("7", Orders.first(consumer));
        }
    }

    @Test
    void orderIsSentAgainIfTheFirstAnswerIsAnError(Minibroker kafka) throws Exception {
        var rule = Map.of("action", "error", "api", "Produce", "error", "NOT_LEADER_OR_FOLLOWER", "first", 1);
        try (Fault fault = kafka.addFault(rule);
                Journal journal = kafka.startJournal();
                var producer = producer(kafka)) {
            Orders.send(producer, "8");
            fault.await(1, Duration.ofSeconds(10));
            assertEquals(2, journal.entries(Map.of("kind", "request", "api", "Produce")).size());
        }
    }

    @Test
    void orderIsDeletedWhenItsRetentionTimeHasPassed(Minibroker kafka) throws Exception {
        try (var producer = producer(kafka)) {
            Orders.send(producer, "old");
        }
        kafka.advance(Duration.ofMinutes(10)); // Retention is checked every five minutes.
        Object start;
        do {
            var partitions = (List<?>) kafka.topic("orders").get("partitions");
            start = ((Map<?, ?>) partitions.get(0)).get("log_start_offset");
        } while (start.equals(0L));
        assertEquals(1L, start);
    }
}
