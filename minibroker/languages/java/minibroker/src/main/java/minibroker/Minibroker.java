package minibroker;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;

/**
 * A running broker, which is the program minibroker in processes of its own.
 *
 * <pre>{@code
 * try (Minibroker kafka = Minibroker.start()) {
 *     properties.put("bootstrap.servers", kafka.bootstrapServers());
 * }
 * }</pre>
 *
 * It ends with {@link #close}, and with this process at the latest. Objects of the control API are
 * maps; docs/reference/control-api.md describes their fields.
 */
public final class Minibroker implements AutoCloseable {
    /** Longer than the broker allows itself, so that it reports the reason. */
    private static final Duration START_MAX = Duration.ofSeconds(150);

    private static final Duration STOP_MAX = Duration.ofSeconds(15);
    private static final int LOG_MAX = 64 * 1024;

    private final Process process;
    private final Thread logReader;
    private final StringBuffer log = new StringBuffer();
    private final Map<String, Object> ready;
    private final Control control;

    /** Start a broker on a free port, and wait until clients can connect. */
    public static Minibroker start() {
        return start(Map.of());
    }

    /** The same with settings of the broker, e.g. num.partitions, and options of {@code minibroker start}. */
    public static Minibroker start(Map<String, ?> settings, String... options) {
        try {
            List<String> command =
                    new ArrayList<>(Executable.find(System.getenv(), Minibroker.class.getClassLoader()));
            command.addAll(List.of("start", "--json", "--exit-with-parent"));
            if (!List.of(options).contains("--listener")) {
                command.addAll(List.of("--listener", "PLAINTEXT://127.0.0.1:0"));
            }
            settings.forEach((name, value) -> command.addAll(List.of("--set", name + "=" + value)));
            command.addAll(List.of(options));
            return new Minibroker(command, START_MAX);
        } catch (IOException failed) {
            throw new UncheckedIOException("minibroker did not start", failed);
        }
    }

    Minibroker(List<String> command, Duration timeout) throws IOException {
        // The broker ends when its standard input does, however this process ends.
        process = new ProcessBuilder(command).start();
        logReader = daemon(() -> reader(process.getErrorStream()).lines().forEach(this::append));
        try {
            ready = readyLine(timeout);
            control = new Control((String) ready.get("control_url"));
        } catch (MinibrokerException failed) {
            close();
            throw new MinibrokerException("minibroker did not start: " + failed.getMessage() + "\n" + log());
        }
    }

    private Map<String, Object> readyLine(Duration timeout) {
        CompletableFuture<String> line = new CompletableFuture<>();
        daemon(() -> line.complete(reader(process.getInputStream()).lines().findFirst().orElse("")));
        try {
            String text = line.get(timeout.toMillis(), TimeUnit.MILLISECONDS);
            if (text.isEmpty()) throw new MinibrokerException("it ended");
            Map<String, Object> found = Json.read(text);
            if (!"ready".equals(found.get("event"))) throw new MinibrokerException((String) found.get("message"));
            return found;
        } catch (TimeoutException | ExecutionException late) {
            throw new MinibrokerException("it was not ready after " + timeout);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new MinibrokerException("interrupted");
        }
    }

    private static BufferedReader reader(InputStream stream) {
        return new BufferedReader(new InputStreamReader(stream, StandardCharsets.UTF_8));
    }

    private static Thread daemon(Runnable task) {
        Thread thread = new Thread(task, "minibroker");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void append(String line) {
        log.append(line).append('\n');
        if (log.length() > LOG_MAX) log.delete(0, log.length() - LOG_MAX);
    }

    /** Stop the broker, and wait until it has ended; a second call does nothing. */
    @Override
    public void close() {
        try {
            process.getOutputStream().close();
        } catch (IOException ended) {
            // It has ended by itself.
        }
        try {
            if (!process.waitFor(STOP_MAX.toMillis(), TimeUnit.MILLISECONDS)) process.destroyForcibly().waitFor();
            logReader.join(STOP_MAX.toMillis());
        } catch (InterruptedException interrupted) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }

    /** Addresses for clients, {@code host:port}, with commas between them. */
    public String bootstrapServers() {
        return (String) ready.get("bootstrap_servers");
    }

    public String controlUrl() {
        return (String) ready.get("control_url");
    }

    public long pid() {
        return (Long) ready.get("pid");
    }

    /** The end of what the broker has written to its standard error. */
    public String log() {
        return log.toString();
    }

    /** Create a topic; when this returns, every connection knows it. */
    public void createTopic(String name, int partitions) {
        createTopic(name, partitions, Map.of());
    }

    /** The same with configs of the topic, e.g. retention.ms. */
    public void createTopic(String name, int partitions, Map<String, String> configs) {
        call("POST", Map.of("name", name, "partitions", partitions, "configs", configs), Map.of(), "topics");
    }

    /** Return a topic: partitions with offsets and sizes, and configs. */
    public Map<String, Object> topic(String name) {
        return call("GET", null, Map.of(), "topics", name);
    }

    public List<Map<String, Object>> topics() {
        return Control.objects(call("GET", null, Map.of(), "topics").get("topics"));
    }

    public void deleteTopic(String name) {
        call("DELETE", null, Map.of(), "topics", name);
    }

    /** Produce messages: values, or maps such as {@code Map.of("key", "7", "value", "paid")}. */
    public void produce(String topic, Object... messages) {
        var records = new ArrayList<Object>();
        for (Object message : messages) records.add(message instanceof Map ? message : Map.of("value", message));
        call("POST", Map.of("records", records), Map.of(), "topics", topic, "records");
    }

    /** Return all messages of a topic, without waiting. */
    public List<Map<String, Object>> messages(String topic) {
        var found = new ArrayList<Map<String, Object>>();
        String positions = "";
        while (true) {
            var page = call("GET", null, Map.of("limit", 1000, "positions", positions), "topics", topic, "records");
            found.addAll(Control.objects(page.get("records")));
            if (!Boolean.TRUE.equals(page.get("has_more"))) return found;
            positions = ((Map<?, ?>) page.get("next")).entrySet().stream()
                    .map(next -> next.getKey() + ":" + next.getValue())
                    .collect(Collectors.joining(","));
        }
    }

    /** Wait until a topic has so many messages, and return the first ones. */
    public List<Map<String, Object>> waitFor(String topic, int count, Duration timeout) {
        var query = Map.of("wait", count, "limit", count, "timeout_ms", timeout.toMillis());
        return Control.objects(call("GET", null, query, "topics", topic, "records").get("records"));
    }

    /** Wait for a group; conditions are {@code state}, {@code members} and {@code lag}. */
    public Map<String, Object> waitForGroup(String id, Map<String, ?> conditions, Duration timeout) {
        var query = new HashMap<String, Object>(conditions);
        query.put("group_id", id);
        query.put("timeout_ms", timeout.toMillis());
        return call("GET", null, query, "groups", "");
    }

    /** Delete all topics, groups and offsets; clients stay connected. */
    public void reset() {
        call("POST", null, Map.of(), "reset");
    }

    /** The broker's clock. */
    public Map<String, Object> clock() {
        return call("GET", null, Map.of(), "clock");
    }

    /** Advance the broker's clock: all its clients see the time pass. */
    public Map<String, Object> advance(Duration time) {
        return call("POST", Map.of("advance_ms", time.toMillis()), Map.of(), "clock");
    }

    /** Stop the broker's clock, or let it run. */
    public Map<String, Object> freeze(boolean frozen) {
        return call("POST", Map.of("freeze", frozen), Map.of(), "clock");
    }

    /**
     * Add a fault rule; when this returns, every connection obeys it:
     * {@code Map.of("action", "error", "api", "Produce", "error", "NOT_LEADER_OR_FOLLOWER", "first", 1)}.
     */
    public Fault addFault(Map<String, ?> rule) {
        return new Fault(control, call("POST", rule, Map.of(), "faults"));
    }

    /** All fault rules with their hits. */
    public List<Map<String, Object>> faults() {
        return Control.objects(call("GET", null, Map.of(), "faults").get("faults"));
    }

    /** Remove all fault rules. */
    public void clearFaults() {
        call("DELETE", null, Map.of(), "faults");
    }

    /** Record what clients and the broker do, from now on. */
    public Journal startJournal() {
        return new Journal(control);
    }

    /** Send a request to the control API: {@code call("GET", null, Map.of(), "topics", "orders")}. */
    public Map<String, Object> call(String method, Map<String, ?> body, Map<String, ?> query, String... path) {
        return control.call(method, body, query, path);
    }
}
