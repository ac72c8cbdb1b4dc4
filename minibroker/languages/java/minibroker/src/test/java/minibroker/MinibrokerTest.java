package minibroker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class MinibrokerTest {
    private static Minibroker broker;

    @BeforeAll
    static void start() {
        broker = Minibroker.start(Map.of("num.partitions", 3), "--control", "0.0.0.0:0"); // A token is required.
    }

    @AfterAll
    static void stop() {
        broker.close();
        broker.close();
        assertFalse(ProcessHandle.of(broker.pid()).isPresent());
    }

    private static List<Object> ownTopics() {
        return broker.topics().stream()
                .filter(topic -> topic.get("internal").equals(false))
                .map(topic -> topic.get("name"))
                .collect(Collectors.toList());
    }

    @Test
    void topicsAreCreatedAndDeleted() {
        broker.createTopic("orders", 2, Map.of("retention.ms", "60000"));
        assertEquals(2, ((List<?>) broker.topic("orders").get("partitions")).size());
        assertEquals(List.of("orders"), ownTopics());
        broker.deleteTopic("orders");
        broker.createTopic("left", 1);
        broker.reset();
        assertEquals(List.of(), ownTopics());
        MinibrokerException unknown = assertThrows(MinibrokerException.class, () -> broker.topic("a/../b?c"));
        assertEquals("UNKNOWN_TOPIC_OR_PARTITION", unknown.code());
        MinibrokerException invalid = assertThrows(MinibrokerException.class, () -> broker.createTopic("", 1));
        assertEquals(
                "INVALID_REQUEST: name: must have 1 to 249 characters, not 0. GET /openapi.json describes every body.",
                invalid.getMessage());
    }

    @Test
    void messagesAreProducedReadAndAwaited() {
        broker.produce("messages", "a", Map.of("key", "7", "value", "b"));
        List<Map<String, Object>> found = broker.waitFor("messages", 2, Duration.ofSeconds(10));
        assertEquals(Set.of("a", "b"), found.stream().map(each -> each.get("value")).collect(Collectors.toSet()));
        Duration soon = Duration.ofMillis(20);
        MinibrokerException missing =
                assertThrows(MinibrokerException.class, () -> broker.waitFor("messages", 3, soon));
        assertTrue(missing.getMessage().contains("there are 2"), missing.getMessage());
        broker.produce("many", Collections.nCopies(2001, "x").toArray());
        assertEquals(2001, broker.messages("many").size());
        MinibrokerException noGroup = assertThrows(
                MinibrokerException.class, () -> broker.waitForGroup("..", Map.of("state", "Stable"), soon));
        assertEquals("REQUEST_TIMED_OUT", noGroup.code());
        broker.reset();
    }

    @Test
    void clockIsAdvancedAndStopped() {
        double before = ((Number) broker.clock().get("offset_ms")).doubleValue();
        double after = ((Number) broker.advance(Duration.ofSeconds(11)).get("offset_ms")).doubleValue();
        assertTrue(after >= before + 11_000);
        assertEquals(true, broker.freeze(true).get("frozen"));
        assertEquals(false, broker.freeze(false).get("frozen"));
    }

    @Test
    void faultRulesAreAddedAwaitedReleasedAndRemoved() {
        String wrong = assertThrows(MinibrokerException.class, () -> broker.addFault(Map.of("action", "eror"))).getMessage();
        assertTrue(wrong.contains("action"), wrong);
        try (Fault fault = broker.addFault(Map.of("action", "error", "api", "Produce", "error", "NOT_COORDINATOR"))) {
            assertEquals(0L, fault.view().get("hits"));
            MinibrokerException late =
                    assertThrows(MinibrokerException.class, () -> fault.await(1, Duration.ofMillis(1)));
            assertEquals("REQUEST_TIMED_OUT", late.code());
            assertEquals(0, fault.release());
            assertEquals(fault.id(), broker.faults().get(0).get("id"));
        }
        broker.addFault(Map.of("action", "delay", "api", "Fetch", "delay_ms", 1));
        broker.clearFaults();
        assertEquals(List.of(), broker.faults());
    }

    @Test
    void journalHasWhatHappenedSinceItsStart() {
        Map<String, String> clock = Map.of("kind", "clock");
        try (Journal journal = broker.startJournal()) {
            broker.advance(Duration.ofMillis(5));
            assertEquals("clock", journal.await(clock, Duration.ofSeconds(10)).get("kind"));
            assertThrows(MinibrokerException.class, () -> journal.await(Map.of("api", "Produce"), Duration.ofMillis(1)));
        }
        try (Journal journal = broker.startJournal()) {
            assertEquals(List.of(), journal.entries(clock));
        }
    }

    @Test
    void brokerThatCannotStartThrowsItsReason() {
        String message = assertThrows(
                        MinibrokerException.class, () -> Minibroker.start(Map.of("num.partition", 3)))
                .getMessage();
        assertTrue(message.contains("did you mean num.partitions"), message);
    }

    @Test
    void programThatIsNoBrokerThrowsWhatItWrote() {
        List<String> silent = List.of("sh", "-c", "echo no broker >&2");
        String message = assertThrows(MinibrokerException.class, () -> new Minibroker(silent, Duration.ofMinutes(1)))
                .getMessage();
        assertTrue(message.contains("it ended\nno broker"), message);
        assertThrows(IOException.class, () -> new Minibroker(List.of("/nowhere/minibroker"), Duration.ofMinutes(1)));
    }

    @Test
    void silentProgramIsStopped() {
        String message = assertThrows(
                        MinibrokerException.class, () -> new Minibroker(List.of("cat"), Duration.ofMillis(1)))
                .getMessage();
        assertTrue(message.contains("not ready after"), message);
    }
}
