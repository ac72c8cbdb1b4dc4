package minibroker;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What clients and the broker did since the journal was started. */
public final class Journal implements AutoCloseable {
    private static final String LOST = "lost";
    private final Control control;
    private final Object start;

    Journal(Control control) {
        this.control = control;
        this.start = control.call("POST", Map.of("enabled", true), Map.of(), "journal").get("last");
    }

    /** All matching entries, oldest first; conditions as {@code Map.of("kind", "request", "api", "Produce")}. */
    public List<Map<String, Object>> entries(Map<String, ?> conditions) {
        List<Map<String, Object>> found = new ArrayList<>();
        Map<String, Object> query = query(conditions, 1000);
        while (true) {
            Map<String, Object> page = control.call("GET", null, query, "journal");
            found.addAll(Control.objects(page.get("entries")));
            if (!Boolean.TRUE.equals(page.get("has_more"))) return found;
            query.put("after", found.get(found.size() - 1).get("sequence"));
        }
    }

    /** The first matching entry; wait for it, and throw an exception after the timeout. */
    public Map<String, Object> await(Map<String, ?> conditions, Duration timeout) {
        Map<String, Object> query = query(conditions, 1);
        long deadline = System.nanoTime() + timeout.toNanos();
        while (true) {
            query.put("wait_ms", Math.max(0, (deadline - System.nanoTime()) / 1_000_000));
            List<Map<String, Object>> entries =
                    Control.objects(control.call("GET", null, query, "journal").get("entries"));
            if (entries.isEmpty()) {
                throw new MinibrokerException("no entry with " + conditions + " within " + timeout);
            }
            Map<String, Object> entry = entries.get(0);
            if (!LOST.equals(entry.get("kind")) || LOST.equals(conditions.get("kind"))) return entry;
            query.put("after", entry.get("sequence"));
        }
    }

    private Map<String, Object> query(Map<String, ?> conditions, int limit) {
        Map<String, Object> query = new HashMap<>(conditions);
        query.put("after", start);
        query.put("limit", limit);
        return query;
    }

    /** Stop recording. */
    @Override
    public void close() {
        control.call("POST", Map.of("enabled", false), Map.of(), "journal");
    }
}
